/* A stand-in for libcuda.so.1: the functions that carmad.selftest.probe and carmad.gpu.libcuda call,
 * in the world of tests/fake_gpu.py. What a process has on a GPU stands in $FAKE_GPU/processes/PID, where
 * fake_nvml.c and fake_mps read it:
 *   UUID MIB compute|mps PIPE BUSY_US COPIED_US MIB_S UID
 * BUSY_US: when it last ran a kernel; COPIED_US: when it last copied to the GPU, at MIB_S.
 *
 * faults/PID and terminated/PID: its context is lost. $FAKE_GPU/deviations has the words of what
 * this driver does otherwise than documented.
 *
 * checkpoints/PID: it is locked or checkpointed: the number of its state, and then the line that
 * stood in processes. Each call for that is noted in $FAKE_GPU/calls. What goes wrong with it is a
 * word among the deviations, for all processes or one: "lock=600", "restore=2 PID"; the code may
 * also be "fails" (the process has failed), "hangs" or "dies" (the caller). A lock waits while
 * there is running/PID: a kernel of the process. Contents are kept of what is copied in pieces of up to 16 MiB.
 *
 * Memory limits: those that fake_nvml.c has noted of a cgroup. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "../fake_gpu.h"

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100,
       INVALID_CONTEXT = 201, OPERATING_SYSTEM = 304, ILLEGAL_STATE = 401, NOT_FOUND = 500,
       NOT_READY = 600, ILLEGAL_ADDRESS = 700, LAUNCH_FAILED = 719,
       NOT_SUPPORTED = 801, MPS_SERVER_NOT_READY = 807, MPS_CLIENT_TERMINATED = 810, UNKNOWN = 999 };
enum { RUNNING, LOCKED, CHECKPOINTED, FAILED };
enum { MAX_GPUS = 8, MAX_BLOCKS = 4096, PIECE_US = 10000,
       COPIED_MIB_S = 8000, KEPT_MIB = 16 };

typedef struct { char uuid[96]; unsigned long long total, reserved, used; } Gpu;
typedef struct { unsigned long long bytes; int used; char *contents; } Block;

static Gpu gpus[MAX_GPUS];
static Block blocks[MAX_BLOCKS];
static int n_gpus, chosen, initialized, context, mps, faulting;
static unsigned long long limit_mib, pending_ns, copied_bytes;
static long long busy_us, first_copy_us, copied_us, copied_mib_s, saved_us;
static char pipe_directory[512];

/* A test that cannot start a process of another user says here whose it would be. */
static int user(void) {
    return getenv("FAKE_UID") ? atoi(getenv("FAKE_UID")) : (int)getuid();
}

static const char *own(void) {
    static char pid[16];
    snprintf(pid, sizeof pid, "%d", getpid());
    return pid;
}

static unsigned long long own_mib(void) {
    unsigned long long bytes = 0;
    for (int i = 0; i < MAX_BLOCKS; i++) if (blocks[i].used) bytes += blocks[i].bytes;
    int big = deviates("large_contexts");
    unsigned long long its = (mps ? MPS_CONTEXT_MIB : CONTEXT_MIB) + (big ? 4000 : 0);
    return bytes / MIB + (context ? its : 0);
}

/* A locked process waits in its next call; it may have moved to another GPU by then. */
static void await_unlock(void) {
    char uuid[96];
    while (!access(path("checkpoints", own()), F_OK)) usleep(PIECE_US);
    FILE *file = fopen(path("processes", own()), "r");
    if (file && fscanf(file, "%95s", uuid) == 1)
        for (int i = 0; i < n_gpus; i++) if (!strcmp(gpus[i].uuid, uuid)) chosen = i;
    if (file) fclose(file);
}

static void save(void) {
    char draft[64];
    await_unlock();
    snprintf(draft, sizeof draft, ".%s", own());
    FILE *file = fopen(path("processes", draft), "w");
    if (!file) return;
    fprintf(file, "%s %llu %s %s %lld %lld %lld %d\n", gpus[chosen].uuid, own_mib(), mps ? "mps" : "compute",
            mps ? pipe_directory : "-", busy_us, copied_us, copied_mib_s, user());
    fclose(file);
    rename(path("processes", draft), path("processes", own()));
    saved_us = now_us();
}

/* What limits leave of `left` bytes, and the most that this process can have (`total`). */
static unsigned long long within_limits(unsigned long long left, unsigned long long *total) {
    char line[1024], uuid[96], cgroup[512];
    unsigned long long guaranteed, most;
    FILE *file = fopen(limits_file(""), "r");
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "%95s %llu %llu %511s", uuid, &guaranteed, &most, cgroup) != 4) continue;
        if (strcmp(uuid, gpus[chosen].uuid) || access(cgroup, F_OK)) continue;
        unsigned long long taken = taken_in(uuid, cgroup);
        int ours = in_cgroup(own(), cgroup);
        if (ours && most < *total && !deviates("most_ignored")) {
            unsigned long long its = taken * MIB < most ? most - taken * MIB : 0;
            *total = most;
            if (its < left) left = its;
        }
        unsigned long long kept = guaranteed > taken * MIB ? guaranteed - taken * MIB : 0;
        if (!ours && !deviates("guarantees_ignored")) left = left > kept ? left - kept : 0;
    }
    if (file) fclose(file);
    return left;
}

static void lose(const char *pid) {
    FILE *file = fopen(path("faults", pid), "w");
    if (file) fclose(file);
}

/* A process that ends by itself leaves nothing to tear down. */
__attribute__((destructor)) static void end(void) {
    if (initialized) unlink(path("processes", own()));
}

/* A fault takes along all clients of the same server on this GPU; without MPS, nobody. */
static void fault(void) {
    DIR *folder = opendir(path("processes", 0));
    struct dirent *entry;
    lose(own());
    tell_xid(gpus[chosen].uuid, 31);
    while (folder && (entry = readdir(folder))) {
        char uuid[96], mode[16], pipe[512];
        FILE *file = entry->d_name[0] == '.' ? 0 : fopen(path("processes", entry->d_name), "r");
        if (!file) continue;
        if (fscanf(file, "%95s %*s %15s %511s", uuid, mode, pipe) == 3) {
            int here = !strcmp(uuid, gpus[chosen].uuid) || deviates("fault_crosses");
            int together = mps && here && !strcmp(pipe, pipe_directory) && !deviates("fault_alone");
            if (together || deviates("fault_spreads")) lose(entry->d_name);
        }
        fclose(file);
    }
    if (folder) closedir(folder);
}

static int lost(void) {
    await_unlock();
    if (!access(path("terminated", own()), F_OK)) return MPS_CLIENT_TERMINATED;
    if (!access(path("faults", own()), F_OK)) return faulting ? ILLEGAL_ADDRESS : LAUNCH_FAILED;
    return OK;
}

static void read_world(void) {
    char line[512], key[64], a[128], b[128], c[128];
    FILE *file = fopen(getenv("FAKE_NVML_WORLD") ? getenv("FAKE_NVML_WORLD") : "", "r");
    while (file && fgets(line, sizeof line, file)) {
        a[0] = b[0] = c[0] = 0;
        if (sscanf(line, "%63s %127s %127s %127s", key, a, b, c) < 2) continue;
        const char *uuid = !strcmp(key, "gpu") ? a : !strcmp(key, "slot") ? c : 0; /* or an instance */
        if (uuid && n_gpus < MAX_GPUS) strncpy(gpus[n_gpus++].uuid, uuid, sizeof gpus[0].uuid - 1);
        if (!strcmp(key, "memory") && n_gpus) {
            Gpu *gpu = &gpus[n_gpus - 1];
            gpu->total = strtoull(a, 0, 10), gpu->reserved = strtoull(b, 0, 10), gpu->used = strtoull(c, 0, 10);
        }
    }
    if (file) fclose(file);
}

static int ask_daemon(const char *question, char *answer, size_t room) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if ((size_t)snprintf(address.sun_path, sizeof address.sun_path, "%s/control", pipe_directory) >= sizeof address.sun_path) return -1;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ssize_t got = -1;
    if (!connect(fd, (struct sockaddr *)&address, sizeof address) && write(fd, question, strlen(question)) > 0)
        got = read(fd, answer, room - 1);
    close(fd);
    answer[got > 0 ? got : 0] = 0;
    return got > 0 ? 0 : -1;
}

/* A client whose daemon cannot be reached runs without MPS; one of another user waits. */
static int connect_mps(void) {
    char question[64], answer[256];
    const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY");
    snprintf(pipe_directory, sizeof pipe_directory, "%s", directory ? directory : "/tmp/nvidia-mps");
    snprintf(question, sizeof question, "connect %d %d", getpid(), user());
    for (;;) {
        if (ask_daemon(question, answer, sizeof answer)) return OK;
        if (strstr(answer, "fault")) return MPS_SERVER_NOT_READY;
        if (!strstr(answer, "wait")) break;
        usleep(50000);
    }
    mps = 1;
    const char *limit = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"), *equals = limit ? strchr(limit, '=') : 0;
    if (equals && !deviates("limit_ignored"))
        limit_mib = strtoull(equals + 1, 0, 10) * (limit[strlen(limit) - 1] == 'G' ? 1024 : 1);
    return OK;
}

/* --- the library --- */

int cuInit(unsigned flags) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (initialized) return OK;
    read_world();
    for (chosen = 0; chosen < n_gpus && visible && strcmp(visible, gpus[chosen].uuid); chosen++) {}
    if (flags || chosen >= n_gpus) return flags ? INVALID_VALUE : NO_DEVICE;
    int code = connect_mps();
    if (code) return code;
    if (mps && deviates("no_uuids_under_mps")) return NO_DEVICE;
    initialized = 1;
    return OK;
}

int cuDriverGetVersion(int *out) { *out = deviates("driver_570") ? 12080 : 13040; return OK; }
int cuDeviceGetCount(int *out) { *out = 1; return initialized ? OK : NOT_INITIALIZED; }
int cuDeviceGet(int *out, int ordinal) { *out = 0; return !initialized ? NOT_INITIALIZED : ordinal ? INVALID_VALUE : OK; }
int cuDeviceGetAttribute(int *out, int attribute, int device) { (void)device; *out = attribute == 16 ? 4 : 0; return OK; }

int cuDeviceGetUuid_v2(unsigned char out[16], int device) {
    (void)device;
    int digits = 0;
    memset(out, 0, 16);
    for (const char *c = strchr(gpus[chosen].uuid, '-'); c && *c && digits < 32; c++) {
        char digit[2] = {*c, 0};
        if (*c != '-') out[digits / 2] |= strtoul(digit, 0, 16) << (digits % 2 ? 0 : 4), digits++;
    }
    return OK;
}

int cuGetErrorName(int code, const char **out) {
    static const struct { int code; const char *name; } names[] = {
        {OK, "CUDA_SUCCESS"}, {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"}, {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
        {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"}, {NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
        {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"}, {NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
        {OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM"}, {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"},
        {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"}, {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED"},
        {MPS_SERVER_NOT_READY, "CUDA_ERROR_MPS_SERVER_NOT_READY"}, {MPS_CLIENT_TERMINATED, "CUDA_ERROR_MPS_CLIENT_TERMINATED"}};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].code == code) { *out = names[i].name; return OK; }
    *out = 0;
    return INVALID_VALUE;
}

int cuDevicePrimaryCtxRetain(void **out, int device) {
    (void)device;
    if (!initialized) return NOT_INITIALIZED;
    context = 1;
    *out = &context;
    save();
    return OK;
}
int cuDevicePrimaryCtxRelease_v2(int device) { (void)device; context = 0; save(); return OK; }
int cuCtxSetCurrent(void *its) { return its ? OK : INVALID_CONTEXT; }

int cuMemGetInfo_v2(size_t *free, size_t *total) {
    Gpu *gpu = &gpus[chosen];
    int code = context ? lost() : INVALID_CONTEXT;
    if (code) return code;
    unsigned long long taken = gpu->reserved + gpu->used + taken_in(gpu->uuid, 0); /* also by the dead */
    unsigned long long left = gpu->total > taken ? gpu->total - taken : 0, most = gpu->total * MIB;
    if (limit_mib && limit_mib - own_mib() < left) left = limit_mib - own_mib();
    *free = within_limits(left * MIB, &most), *total = most;
    return OK;
}

int cuMemAlloc_v2(uint64_t *out, size_t bytes) {
    size_t free, total;
    int code = cuMemGetInfo_v2(&free, &total), i = 0;
    if (code) return code;
    if (bytes > free || (limit_mib && own_mib() + bytes / MIB > limit_mib)) return OUT_OF_MEMORY;
    while (i < MAX_BLOCKS && blocks[i].used) i++;
    if (i == MAX_BLOCKS) return OUT_OF_MEMORY;
    blocks[i] = (Block){bytes, 1, 0};
    *out = (uint64_t)(i + 1) << 32;
    save();
    return OK;
}

/* As if all of it had come to the GPU. */
int cuMemAllocManaged(uint64_t *out, size_t bytes, unsigned flags) {
    return flags == 1 ? cuMemAlloc_v2(out, bytes) : INVALID_VALUE;
}

int cuMemFree_v2(uint64_t address) {
    int code = lost();
    uint64_t i = (address >> 32) - 1;
    if (code) return code;
    if (i >= MAX_BLOCKS || !blocks[i].used) return INVALID_VALUE;
    if (blocks[i].contents) free(blocks[i].contents);
    blocks[i].used = 0;
    save();
    return OK;
}

/* Where the bytes are kept that are copied to or from there; 0: they are not. */
static char *contents(uint64_t address, size_t bytes) {
    uint64_t i = (address >> 32) - 1, offset = address & 0xffffffff;
    if (i >= MAX_BLOCKS || !blocks[i].used || bytes > KEPT_MIB * MIB || offset + bytes > blocks[i].bytes) return 0;
    if (!blocks[i].contents) blocks[i].contents = calloc(1, blocks[i].bytes);
    return blocks[i].contents + offset;
}

int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) {
    int code = lost();
    if (code) return code;
    char *kept = contents(from, bytes);
    if (!kept) return INVALID_VALUE;
    memcpy(to, kept, bytes);
    if (deviates("contents_lost")) memset(to, 0, bytes);
    return OK;
}

int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes) {
    int code = lost();
    if (code) return code;
    char *kept = contents(to, bytes);
    if (kept) memcpy(kept, from, bytes);
    if (now_us() - copied_us > 1000000) first_copy_us = now_us(), copied_bytes = 0;
    usleep(bytes / MIB * 1000000 / COPIED_MIB_S);
    copied_us = now_us(), copied_bytes += bytes;
    copied_mib_s = (long long)(copied_bytes / MIB) * 1000000 / (copied_us - first_copy_us + 1);
    save();
    return OK;
}

int cuModuleLoadData(void **out, const char *image) {
    if (!strstr(image, ".entry spin") || !strstr(image, ".entry fault")) return INVALID_VALUE;
    *out = &context;
    return context ? lost() : INVALID_CONTEXT;
}

int cuModuleGetFunction(const char **out, void *module, const char *name) {
    (void)module;
    *out = !strcmp(name, "spin") ? "spin" : !strcmp(name, "fault") ? "fault" : 0;
    return *out ? OK : NOT_FOUND;
}

int cuLaunchKernel(const char *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **parameters, void **extra) {
    (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)extra;
    int code = lost();
    if (code) return code;
    if (!strcmp(function, "fault")) faulting = 1;
    else {
        FILE *file = fopen(path("running", own()), "w");
        if (file) fclose(file);
        pending_ns += *(uint64_t *)parameters[0];
    }
    return OK;
}

int cuCtxSynchronize(void) {
    if (faulting && !lost()) fault();
    while (deviates("kernels_hang")) usleep(PIECE_US);
    for (; pending_ns; pending_ns -= pending_ns > PIECE_US * 1000 ? PIECE_US * 1000 : pending_ns) {
        busy_us = now_us();
        if (busy_us - saved_us > 50000) save();
        usleep(pending_ns > PIECE_US * 1000 ? PIECE_US : pending_ns / 1000);
        if (lost()) pending_ns = 0;
        if (!pending_ns) break;
    }
    unlink(path("running", own()));
    return lost();
}

/* --- the process checkpoint: by another process --- */

typedef struct { unsigned timeout_ms, reserved0; uint64_t reserved1[7]; } LockArgs;
typedef struct { uint64_t reserved[8]; } NoArgs;
typedef struct { unsigned char from[16], to[16]; } Pair;
typedef struct { Pair *pairs; unsigned count; char reserved[44]; uint64_t reserved1; } RestoreArgs;
typedef struct { char pid[16], line[1024]; int state; } Target;

static int all_zero(const void *from, const void *end) {
    for (const char *byte = from; byte < (const char *)end; byte++) if (*byte) return 0;
    return 1;
}

static void note(const char *call, int pid, const char *words) {
    FILE *file = fopen(path("calls", 0), "a");
    if (!file) return;
    fprintf(file, "%s %d%s\n", call, pid, words);
    fclose(file);
}

static void save_target(const Target *its) {
    FILE *file = fopen(path("checkpoints", its->pid), "w");
    if (!file) return;
    fprintf(file, "%d\n%s", its->state, its->line);
    fclose(file);
}

/* Finds the process, and does what was planned for this call of it. */
static int target(Target *its, const char *call, int pid, int state) {
    char line[128], wanted[16], code[16];
    int whose, said = 0;
    memset(its, 0, sizeof *its);
    snprintf(its->pid, sizeof its->pid, "%d", pid);
    int may_not = deviates("not_root") || (getenv("FAKE_UID") && user() && !deviates("anyone_suspends"));
    if (kill(pid, 0) || may_not) return OPERATING_SYSTEM;
    FILE *file = fopen(path("checkpoints", its->pid), "r");
    if (file && fscanf(file, "%d\n", &its->state) != 1) its->state = FAILED;
    if (!file) file = fopen(path("processes", its->pid), "r");
    if (!file) return deviates("cuda_everywhere") ? OK : NOT_INITIALIZED;
    if (!fgets(its->line, sizeof its->line, file)) its->line[0] = 0;
    fclose(file);
    FILE *plan = fopen(path("deviations", 0), "r");
    while (plan && !said && fgets(line, sizeof line, plan)) {
        whose = pid;
        said = sscanf(line, "%15[a-z]=%15s %d", wanted, code, &whose) >= 2 && whose == pid && !strcmp(wanted, call);
    }
    if (plan) fclose(plan);
    if (said && !strcmp(code, "hangs")) for (;;) pause();
    if (said && !strcmp(code, "dies")) abort();
    if (said && !strcmp(code, "fails")) its->state = FAILED, save_target(its);
    if (said) return atoi(code) ? atoi(code) : UNKNOWN;
    return state >= 0 && its->state != state ? ILLEGAL_STATE : OK;
}

int cuCheckpointProcessGetState(int pid, int *out) {
    Target its;
    int code = target(&its, "state", pid, -1);
    *out = its.state;
    return code;
}

int cuCheckpointProcessLock(int pid, LockArgs *args) {
    Target its;
    char words[32];
    snprintf(words, sizeof words, " %u", args->timeout_ms);
    note("lock", pid, words);
    if (!args->timeout_ms) for (;;) pause(); /* for ever */
    if (!all_zero(&args->reserved0, args + 1)) return INVALID_VALUE;
    int code = target(&its, "lock", pid, RUNNING);
    if (code) return code;
    if (strstr(its.line, " mps ") && !deviates("clients_suspend")) return NOT_SUPPORTED;
    for (long long until_us = now_us() + args->timeout_ms * 1000LL; !access(path("running", its.pid), F_OK); usleep(PIECE_US))
        if (now_us() > until_us && !deviates("lock_waits")) return NOT_READY;
    its.state = LOCKED, save_target(&its);
    return OK;
}

int cuCheckpointProcessCheckpoint(int pid, NoArgs *args) {
    Target its;
    note("checkpoint", pid, "");
    if (!all_zero(args, args + 1)) return INVALID_VALUE;
    int code = target(&its, "checkpoint", pid, LOCKED);
    if (code) return code;
    its.state = CHECKPOINTED, save_target(&its);
    if (!deviates("memory_kept")) unlink(path("processes", its.pid));
    return OK;
}

static void in_words(const unsigned char bytes[16], char uuid[96]) {
    uuid += sprintf(uuid, "GPU");
    for (int i = 0; i < 16; i++) uuid += sprintf(uuid, "%s%02x", strchr("\1\5\7\11\13", i + 1) ? "-" : "", bytes[i]);
}

int cuCheckpointProcessRestore(int pid, RestoreArgs *args) {
    Target its;
    Gpu *gpu = 0;
    char words[256] = "", from[96], to[96], uuid[96], rest[900];
    unsigned long long mib;
    for (unsigned i = 0; i < args->count; i++) {
        in_words(args->pairs[i].from, from), in_words(args->pairs[i].to, to);
        snprintf(words + strlen(words), sizeof words - strlen(words), " %s=%s", from, to);
    }
    note("restore", pid, words);
    if (!all_zero(args->reserved, args + 1)) return INVALID_VALUE;
    int code = target(&its, "restore", pid, CHECKPOINTED);
    if (code) return code;
    if (deviates("no_persistence") && !initialized) return NOT_INITIALIZED;
    if (sscanf(its.line, "%95s %llu %899[^\n]", uuid, &mib, rest) != 3) return UNKNOWN;
    int known = !args->count;
    for (unsigned i = 0; i < args->count; i++) {
        in_words(args->pairs[i].from, from);
        if (!known && !strcmp(from, uuid)) in_words(args->pairs[i].to, uuid), known = 1;
    }
    if (!n_gpus) read_world();
    for (int i = 0; i < n_gpus; i++) if (!strcmp(gpus[i].uuid, uuid)) gpu = &gpus[i];
    if (!known || !gpu) return INVALID_VALUE;
    snprintf(words, sizeof words, ".refused-%s", its.pid);
    if (deviates("restored_never_again") && !access(path("checkpoints", words), F_OK)) return OPERATING_SYSTEM;
    if (gpu->reserved + gpu->used + taken_in(uuid, 0) + mib > gpu->total && !deviates("restored_anyway")) {
        FILE *refused = fopen(path("checkpoints", words), "w");
        if (refused) fclose(refused);
        return OUT_OF_MEMORY;
    }
    snprintf(its.line, sizeof its.line, "%s %llu %s\n", uuid, mib, rest);
    FILE *file = fopen(path("processes", its.pid), "w");
    if (!file) return UNKNOWN;
    fputs(its.line, file);
    fclose(file);
    its.state = LOCKED, save_target(&its);
    return OK;
}

int cuCheckpointProcessUnlock(int pid, NoArgs *args) {
    Target its;
    note("unlock", pid, "");
    if (!all_zero(args, args + 1)) return INVALID_VALUE;
    int code = target(&its, "unlock", pid, LOCKED);
    if (!code) unlink(path("checkpoints", its.pid));
    return code;
}
