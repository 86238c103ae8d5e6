/* What fake_cuda.c and fake_nvml.c share: the folder $FAKE_GPU (fake_gpu.py), in which each process
 * says what it has on a GPU, and a file of the words of what the driver does otherwise. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

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

/* The limits that fake_nvml was given, one a line: UUID GUARANTEED MOST (bytes) CGROUP. */
static inline const char *limits_file(const char *suffix) {
    static __thread char text[1024];
    const char *world = getenv("FAKE_NVML_WORLD");
    snprintf(text, sizeof text, "%s.limits%s", world ? world : "", suffix);
    return text;
}

static inline int in_cgroup(const char *pid, const char *cgroup) {
    char name[300], line[1024];
    int found = 0;
    snprintf(name, sizeof name, "/proc/%.200s/cgroup", pid);
    FILE *file = fopen(name, "r");
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        size_t own = strlen(line + 3), whole = strlen(cgroup);
        if (!strncmp(line, "0::/", 4) && own > 1 && own < whole && !strcmp(cgroup + whole - own, line + 3)) found = 1;
    }
    if (file) fclose(file);
    return found;
}

/* MiB that processes in a cgroup have on a GPU; without one, that all have. */
static inline unsigned long long taken_in(const char *uuid, const char *cgroup) {
    unsigned long long sum = 0, mib;
    char its[96];
    DIR *folder = opendir(path("processes", 0));
    struct dirent *entry;
    while (folder && (entry = readdir(folder))) {
        char stat[300];
        if (entry->d_name[0] == '.') continue;
        snprintf(stat, sizeof stat, "/proc/%.200s", entry->d_name);
        FILE *file = access(stat, F_OK) ? 0 : fopen(path("processes", entry->d_name), "r");
        int there = file && fscanf(file, "%95s %llu", its, &mib) == 2 && !strcmp(its, uuid);
        if (there && (!cgroup || in_cgroup(entry->d_name, cgroup))) sum += mib;
        if (file) fclose(file);
    }
    if (folder) closedir(folder);
    return sum;
}

static inline void tell_xid(const char *uuid, int number) {
    if (deviates("xids_unseen")) return;
    FILE *file = fopen(path("events", 0), "a");
    if (!file) return;
    fprintf(file, "%s %lld %d\n", uuid, now_us(), number);
    fclose(file);
}
