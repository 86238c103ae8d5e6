/* What fake_cuda.c and fake_nvml.c share: the folder $FAKE_GPU (fake_gpu.py), in which each process
 * says what it has on a GPU, and a file of the words of what the driver does otherwise. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CONTEXT_MIB = 400, MPS_CONTEXT_MIB = 200 };
#define MIB (1024ULL * 1024ULL)

static inline long long now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * 1000000LL + now.tv_nsec / 1000;
}

/* Two of them can be in use at a time. */
static inline const char *path(const char *name, const char *of) {
    static __thread char text[2][1024];
    static __thread int turn;
    char *out = text[turn++ % 2];
    snprintf(out, sizeof text[0], "%s/%s%s%s", getenv("FAKE_GPU") ? getenv("FAKE_GPU") : "", name, of ? "/" : "", of ? of : "");
    return out;
}

static inline int deviates(const char *word) {
    char line[128];
    int found = 0;
    FILE *file = fopen(path("deviations", 0), "r");
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (!strcmp(line, word)) found = 1;
    }
    if (file) fclose(file);
    return found;
}

static inline void tell_xid(const char *uuid, int number) {
    if (deviates("xids_unseen")) return;
    FILE *file = fopen(path("events", 0), "a");
    if (!file) return;
    fprintf(file, "%s %lld %d\n", uuid, now_us(), number);
    fclose(file);
}
