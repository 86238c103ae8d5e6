/* A stand-in for libnvidia-ml.so.1, scripted by the text file $FAKE_NVML_WORLD, which is read anew
 * at every call. Struct layouts, versions and symbol names are those that pynvml.py 13.615 uses.
 *
 * The world, line by line (sizes in MiB, numbers decimal unless said otherwise):
 *   init CODE                 nvmlInit answers CODE
 *   gone CODE                 every call answers CODE: the driver was unloaded
 *   epoch N                   changed: the driver was restarted, old sessions are Uninitialized
 *   gpu UUID                  the lines below describe this GPU, in NVML index order
 *   name TEXT | pci DOMAIN BUS DEVICE (hex) | memory TOTAL RESERVED USED | util GPU MEMORY
 *   power MW | energy MJ | temperature C | recovery ACTION | event_types MASK (hex)
 *   compute PID MIB|none | mps PID MIB|none | graphics PID MIB|none
 *   sample PID TIMESTAMP_US SM     per-process utilisation
 *   stale_samples             samples are given again whatever the caller has seen
 *   addressing MODE           1: HMM, 2: ATS; without it, the call is NotSupported
 *   gpm SM OCCUPANCY DRAM     in percent; without it, no GPM
 *   gpm_metric METRIC VALUE   another metric of GPM's; those that are not given are NotSupported
 *   gpm_fail METRIC CODE      nvmlReturn of one metric
 *   nvlink UUID               to that GPU
 *   node N                    the NUMA node that it hangs below
 *   fail FUNCTION CODE        FUNCTION answers CODE for this GPU; `*` is every function
 *   hang FUNCTION             FUNCTION does not return for this GPU while this line is there
 *   hang_init                 nor does nvmlInit
 *   event SEQ TYPE (hex) DATA INSTANCE|-     delivered once per event set
 *   operational SEQ SEVERITY GROUP_ATTRIBUTES (hex) [xid]   likewise, with $FAKE_NVML_OPERATIONAL
 *   ecc CORRECTED UNCORRECTED   memory errors since the driver was loaded
 *   slowed REASONS (hex)      why its clocks are slow
 *   ails WORD ...             of row_pending, row_failed, page, spare, sram, fabric
 *   mig                       MIG mode is on
 *   hole                      the next MIG slot is empty
 *   slot GI CI UUID           the next MIG slot; the lines below describe the instance
 *
 * Each call is written to $FAKE_NVML_LOG, if set, as "FUNCTION UUID".
 *
 * With $FAKE_GPU (tests/fake_gpu.py) the processes of fake_cuda.c are added to this: their memory,
 * their places in the lists, their samples, and the load, power, energy and Xids that come of them. */
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../fake_gpu.h"

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6,
       INSUFFICIENT_SIZE = 7, TIMEOUT = 10, GPU_IS_LOST = 15, VERSION_MISMATCH = 25 };
enum { COMPUTE, MPS, GRAPHICS };
enum { NEAR = 30, SYSTEM = 50, NO_NVLINK = 5, MAX_LINKS = 16 };
enum { GPM_METRICS = 64, MAX_DEVICES = 64, MAX_LINES = 128, MIG_SLOTS = 7, NO_INSTANCE = -1 };

typedef struct { int list; unsigned pid; unsigned long long bytes; } Process;
typedef struct { unsigned pid; unsigned long long at_us; unsigned sm; } Sample;
typedef struct { char function[64]; int code; } Failure;
typedef struct { unsigned long long seq, type, data; unsigned instance; } Event;
typedef struct { unsigned long long seq; unsigned severity, attributes; int is_xid; } Operational;

typedef struct {
    char uuid[96], name[96];
    int parent, slot, gi, ci, mig; /* parent: index in the world; slot: -1 for a GPU */
    unsigned domain, bus, device;
    unsigned long long total, reserved, used, energy, event_types;
    unsigned util, util_memory, power, temperature, recovery, addressing;
    unsigned long long slowed, ecc[2]; /* reasons for slow clocks; corrected and uncorrected errors */
    char ails[128]; /* words, see below */
    int busy, has_util, has_power, has_energy, has_temperature, has_gpm, stale_samples;
    double gpm[GPM_METRICS];
    int gpm_code[GPM_METRICS];
    char links[MAX_LINKS][96]; int n_links;
    unsigned node;
    Process processes[MAX_LINES]; int n_processes;
    Sample samples[MAX_LINES]; int n_samples;
    Failure failures[MAX_LINES]; int n_failures;
    char hangs[64];
    Event events[MAX_LINES]; int n_events;
    Operational operational[MAX_LINES]; int n_operational;
} Device;

/* A handle names a place, not a UUID: after a new MIG layout it means another instance. */
typedef struct { char gpu[96]; int slot, session; } Handle;

static struct { Device devices[MAX_DEVICES]; int n, init, hang_init, gone, epoch; } world;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Handle handles[1024];
static int n_handles, references, session, session_epoch;

static unsigned long long mib_or_none(const char *word) {
    return strcmp(word, "none") ? strtoull(word, 0, 10) * MIB : ~0ULL;
}

/* --- what fake_cuda's processes do to the world --- */

enum { BUSY_US = 600000, LAG_US = 2000000, BUSY_MW = 300000, FOREIGN = 10000000 }; /* beyond any pid */

static int alive(const char *pid) {
    char name[64], state = 'X';
    snprintf(name, sizeof name, "/proc/%.32s/stat", pid);
    FILE *file = fopen(name, "r");
    if (!file) return 0;
    if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1) state = 'X';
    fclose(file);
    return state != 'Z' && state != 'X';
}

static Device *named(const char *uuid) {
    for (int i = 0; i < world.n; i++) if (!strcmp(world.devices[i].uuid, uuid)) return &world.devices[i];
    return 0;
}

/* A dead process's memory is free at once, unless the driver lags; its kernels were torn down. */
static int bury(const char *pid, const char *uuid, long long ran_us) {
    struct stat its;
    if (stat(path("processes", pid), &its)) return 0;
    if (deviates("memory_lags") && now_us() - its.st_mtim.tv_sec * 1000000LL < LAG_US) return 1;
    if (!unlink(path("processes", pid)) && ran_us) tell_xid(uuid, deviates("kills_look_like_faults") ? 79 : 45);
    return 0;
}

static void add_process(const char *pid) {
    char uuid[96], mode[16], pipe[512];
    unsigned long long mib;
    long long ran_us, copied_us, mib_s;
    FILE *file = fopen(path("processes", pid), "r");
    int fields = file ? fscanf(file, "%95s %llu %15s %511s %lld %lld %lld", uuid, &mib, mode, pipe, &ran_us, &copied_us, &mib_s) : 0;
    if (file) fclose(file);
    Device *dev = fields == 7 ? named(uuid) : 0;
    if (!dev || dev->n_processes == MAX_LINES) return;
    int client = !strcmp(mode, "mps"), server = !strcmp(mode, "server"), lives = alive(pid);
    if (!lives && !bury(pid, uuid, ran_us)) return;
    dev->used += mib * MIB;
    if (!lives) return;
    int shown_pid = atoi(pid) + (deviates("foreign_pids") ? FOREIGN : 0);
    unsigned long long its = server ? 0 : client ? MPS_CONTEXT_MIB : CONTEXT_MIB;
    unsigned long long shown = deviates("contexts_uncounted") && mib > its ? mib - its : mib;
    int hidden = deviates("contexts_unlisted") || (client && deviates("clients_unlisted"));
    if (!hidden) dev->processes[dev->n_processes++] = (Process){client ? MPS : COMPUTE, shown_pid, shown * MIB};
    if (copied_us && now_us() - copied_us < BUSY_US) dev->gpm[21] = mib_s * (deviates("gpm_in_bytes") ? MIB : 1);
    int busy = ran_us && now_us() - ran_us < BUSY_US;
    if (busy) dev->busy = 1;
    int sampled = busy && !deviates("kernels_unsampled") && !(client && deviates("clients_unsampled"));
    if (deviates("contexts_sampled") || (client && deviates("clients_alike"))) sampled = 1, ran_us = now_us();
    if (sampled && !server) dev->samples[dev->n_samples++] = (Sample){shown_pid, ran_us, 98};
}

static void add_processes(void) {
    DIR *folder = opendir(path("processes", 0));
    struct dirent *entry;
    while (folder && (entry = readdir(folder))) if (entry->d_name[0] != '.') add_process(entry->d_name);
    if (folder) closedir(folder);
    for (int i = 0; i < world.n; i++) {
        Device *dev = &world.devices[i];
        if (deviates("no_gpm")) dev->has_gpm = 0;
        if (!dev->busy) continue;
        double full = deviates("gpm_in_ratios") ? 1 : 100;
        dev->util = 100, dev->power = BUSY_MW;
        dev->gpm[1] = dev->gpm[2] = 0.98 * full, dev->gpm[3] = 0.5 * full, dev->gpm[10] = 0.01 * full;
    }
    char uuid[96];
    unsigned long long seq, xid;
    FILE *file = fopen(path("events", 0), "r");
    while (file && fscanf(file, "%95s %llu %llu", uuid, &seq, &xid) == 3) {
        Device *dev = named(uuid);
        if (dev && dev->n_events < MAX_LINES) dev->events[dev->n_events++] = (Event){seq, 8, xid, (unsigned)NO_INSTANCE};
    }
    if (file) fclose(file);
}

/* The counter goes on by the present power; whoever reads power or energy moves it. */
static unsigned long long energy(const Device *dev) {
    char name[128];
    long long at_us = now_us();
    double millijoules = dev->energy;
    snprintf(name, sizeof name, "energy-%s", dev->uuid);
    FILE *file = fopen(path(name, 0), "a+");
    if (!file) return dev->energy;
    flock(fileno(file), LOCK_EX);
    rewind(file);
    if (fscanf(file, "%lld %lf", &at_us, &millijoules) != 2) at_us = now_us();
    long long now = now_us();
    if (now > at_us) millijoules += dev->power / 1e6 * (now - at_us) * (deviates("energy_doubled") ? 2 : 1);
    if (!ftruncate(fileno(file), 0)) fprintf(file, "%lld %f\n", now > at_us ? now : at_us, millijoules);
    fclose(file);
    return millijoules;
}

static void read_world(void) {
    char line[512], key[64], a[128], b[128], c[128], d[128];
    Device *dev = 0;
    int gpu = -1, slot = 0;
    memset(&world, 0, sizeof world);
    FILE *file = fopen(getenv("FAKE_NVML_WORLD") ? getenv("FAKE_NVML_WORLD") : "", "r");
    if (!file) return;
    while (fgets(line, sizeof line, file)) {
        a[0] = b[0] = c[0] = d[0] = 0;
        if (sscanf(line, "%63s %127s %127s %127s %127s", key, a, b, c, d) < 1) continue;
#define IS(word) (!strcmp(key, word))
#define NUM(word) strtoull(word, 0, 10)
#define HEX(word) strtoull(word, 0, 16)
        if (IS("init")) world.init = atoi(a);
        else if (IS("hang_init")) world.hang_init = 1;
        else if (IS("gone")) world.gone = atoi(a);
        else if (IS("epoch")) world.epoch = atoi(a);
        else if (IS("gpu")) {
            gpu = world.n;
            slot = 0;
            dev = &world.devices[world.n++];
            dev->parent = dev->slot = dev->gi = dev->ci = -1;
            dev->event_types = 0xF90B;
            strcpy(dev->uuid, a);
        } else if (!dev) continue;
        else if (IS("hole")) slot++;
        else if (IS("slot")) {
            dev = &world.devices[world.n++];
            dev->parent = gpu;
            dev->slot = slot++;
            dev->gi = atoi(a);
            dev->ci = atoi(b);
            strcpy(dev->uuid, c);
        }
        else if (IS("name")) sscanf(line, " name %95[^\n]", dev->name);
        else if (IS("pci")) dev->domain = HEX(a), dev->bus = HEX(b), dev->device = HEX(c);
        else if (IS("memory")) dev->total = NUM(a) * MIB, dev->reserved = NUM(b) * MIB, dev->used = NUM(c) * MIB;
        else if (IS("util")) dev->has_util = 1, dev->util = NUM(a), dev->util_memory = NUM(b);
        else if (IS("power")) dev->has_power = 1, dev->power = NUM(a);
        else if (IS("energy")) dev->has_energy = 1, dev->energy = NUM(a);
        else if (IS("temperature")) dev->has_temperature = 1, dev->temperature = NUM(a);
        else if (IS("recovery")) dev->recovery = NUM(a);
        else if (IS("addressing")) dev->addressing = NUM(a);
        else if (IS("slowed")) dev->slowed = HEX(a);
        else if (IS("ecc")) dev->ecc[0] = NUM(a), dev->ecc[1] = NUM(b);
        else if (IS("ails")) sscanf(line, " ails %127[^\n]", dev->ails);
        else if (IS("event_types")) dev->event_types = HEX(a);
        else if (IS("mig")) dev->mig = 1;
        else if (IS("node")) dev->node = NUM(a);
        else if (IS("nvlink")) strcpy(dev->links[dev->n_links++], a);
        else if (IS("stale_samples")) dev->stale_samples = 1;
        else if (IS("gpm")) {
            dev->has_gpm = 1;
            for (int i = 0; i < GPM_METRICS; i++) dev->gpm_code[i] = NOT_SUPPORTED;
            dev->gpm_code[2] = dev->gpm_code[3] = dev->gpm_code[10] = OK;
            dev->gpm[2] = atof(a), dev->gpm[3] = atof(b), dev->gpm[10] = atof(c);
        }
        else if (IS("gpm_metric")) dev->gpm_code[atoi(a)] = OK, dev->gpm[atoi(a)] = atof(b);
        else if (IS("gpm_fail")) dev->gpm_code[atoi(a)] = atoi(b);
        else if (IS("sample")) dev->samples[dev->n_samples++] = (Sample){NUM(a), NUM(b), NUM(c)};
        else if (IS("compute") || IS("mps") || IS("graphics"))
            dev->processes[dev->n_processes++] = (Process){IS("mps") ? MPS : IS("graphics") ? GRAPHICS : COMPUTE, NUM(a), mib_or_none(b)};
        else if (IS("hang")) strcpy(dev->hangs, a);
        else if (IS("fail")) {
            strcpy(dev->failures[dev->n_failures].function, a);
            dev->failures[dev->n_failures++].code = atoi(b);
        }
        else if (IS("operational"))
            dev->operational[dev->n_operational++] = (Operational){NUM(a), NUM(b), HEX(c), !strcmp(d, "xid")};
        else if (IS("event"))
            dev->events[dev->n_events++] = (Event){NUM(a), HEX(b), NUM(c), strcmp(d, "-") ? NUM(d) : (unsigned)NO_INSTANCE};
    }
    fclose(file);
    if (getenv("FAKE_GPU")) add_processes();
}

static void note(const char *function, const char *uuid) {
    FILE *file = getenv("FAKE_NVML_LOG") ? fopen(getenv("FAKE_NVML_LOG"), "a") : 0;
    if (!file) return;
    fprintf(file, "%s %s\n", function, uuid);
    fclose(file);
}

static Handle *handle_of(const Device *dev) {
    const char *gpu = dev->parent < 0 ? dev->uuid : world.devices[dev->parent].uuid;
    for (int i = 0; i < n_handles; i++)
        if (handles[i].session == session && handles[i].slot == dev->slot && !strcmp(handles[i].gpu, gpu))
            return &handles[i];
    Handle *made = &handles[n_handles++ % 1024];
    strcpy(made->gpu, gpu);
    made->slot = dev->slot;
    made->session = session;
    return made;
}

static Device *device_of(const Handle *handle) {
    for (int i = 0; i < world.n; i++) {
        Device *dev = &world.devices[i];
        const char *gpu = dev->parent < 0 ? dev->uuid : world.devices[dev->parent].uuid;
        if (dev->slot == handle->slot && !strcmp(gpu, handle->gpu)) return dev;
    }
    return 0;
}

static int failure(const Device *dev, const char *function) {
    for (int i = 0; i < dev->n_failures; i++)
        if (!strcmp(dev->failures[i].function, function) || !strcmp(dev->failures[i].function, "*"))
            return dev->failures[i].code;
    return -1;
}

static int enter(void) {
    read_world();
    if (world.gone) return world.gone;
    if (!references || session_epoch != world.epoch) return UNINITIALIZED;
    return OK;
}

/* Without the lock: others go on. */
static void pause_briefly(void) {
    pthread_mutex_unlock(&lock);
    usleep(20000);
    pthread_mutex_lock(&lock);
}

static int enter_device(const char *function, Handle *handle, Device **dev) {
    int code = enter();
    if (code) return code;
    if (!handle || handle->session != session) return INVALID_ARGUMENT;
    *dev = device_of(handle);
    if (!*dev) return handle->slot < 0 ? GPU_IS_LOST : NOT_FOUND;
    note(function, (*dev)->uuid);
    while (!strcmp((*dev)->hangs, function)) {
        pause_briefly();
        if ((code = enter())) return code;
        if (!(*dev = device_of(handle))) return GPU_IS_LOST;
    }
    code = failure(*dev, function);
    /* A scripted success is for the caller to give; -2 tells it so. */
    return code < 0 ? OK : code == 0 ? -2 : code;
}

#define RETURN(value) do { int result_ = (value); pthread_mutex_unlock(&lock); return result_; } while (0)
#define ENTER do { pthread_mutex_lock(&lock); int code_ = enter(); if (code_) RETURN(code_); } while (0)
#define DEVICE(handle) \
    Device *dev = 0; \
    do { pthread_mutex_lock(&lock); int code_ = enter_device(__func__, handle, &dev); \
         if (code_) RETURN(code_ == -2 ? OK : code_); } while (0)

/* --- the library --- */

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    pthread_mutex_lock(&lock);
    read_world();
    note(__func__, "-");
    while (world.hang_init) {
        pause_briefly();
        read_world();
    }
    if (world.gone || world.init) RETURN(world.gone ? world.gone : world.init);
    if (!references++) {
        session++;
        session_epoch = world.epoch;
    }
    RETURN(OK);
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) {
    pthread_mutex_lock(&lock);
    note(__func__, "-");
    if (!references) RETURN(UNINITIALIZED);
    references--;
    RETURN(OK);
}

int fake_references(void) { return references; }

const char *nvmlErrorString(int code) { static char text[32]; snprintf(text, sizeof text, "Error %d", code); return text; }

int nvmlSystemGetDriverVersion(char *text, unsigned size) { ENTER; snprintf(text, size, "615.71"); RETURN(OK); }
int nvmlSystemGetNVMLVersion(char *text, unsigned size) { ENTER; snprintf(text, size, "13.615.71"); RETURN(OK); }
int nvmlSystemGetCudaDriverVersion(int *version) { ENTER; *version = 13040; RETURN(OK); }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { return nvmlSystemGetCudaDriverVersion(version); }

/* --- which GPUs --- */

static Device *nth_gpu(unsigned index) {
    for (int i = 0; i < world.n; i++)
        if (world.devices[i].slot < 0 && index-- == 0) return &world.devices[i];
    return 0;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    ENTER;
    for (*count = 0; nth_gpu(*count); (*count)++) {}
    RETURN(OK);
}

static int give(const char *function, const Device *dev, Handle **out) {
    if (!dev) return NOT_FOUND;
    int code = failure(dev, function);
    if (code > 0) return code;
    *out = handle_of(dev);
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle **out) {
    ENTER;
    RETURN(nth_gpu(index) ? give(__func__, nth_gpu(index), out) : INVALID_ARGUMENT);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Handle **out) {
    ENTER;
    note(__func__, uuid);
    for (int i = 0; i < world.n; i++)
        if (!strcmp(world.devices[i].uuid, uuid)) RETURN(give(__func__, &world.devices[i], out));
    RETURN(NOT_FOUND);
}

int nvmlDeviceGetIndex(Handle *handle, unsigned *out) {
    DEVICE(handle);
    for (*out = 0; nth_gpu(*out) && nth_gpu(*out) != dev; (*out)++) {}
    RETURN(OK);
}

int nvmlDeviceGetUUID(Handle *handle, char *text, unsigned size) { DEVICE(handle); snprintf(text, size, "%s", dev->uuid); RETURN(OK); }
int nvmlDeviceGetName(Handle *handle, char *text, unsigned size) { DEVICE(handle); snprintf(text, size, "%s", dev->name); RETURN(OK); }
int nvmlDeviceGetSerial(Handle *handle, char *text, unsigned size) { DEVICE(handle); snprintf(text, size, "0123456789"); RETURN(OK); }

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char text[32]; } Pci;
int nvmlDeviceGetPciInfo_v3(Handle *handle, Pci *pci) {
    DEVICE(handle);
    memset(pci, 0, sizeof *pci);
    pci->domain = dev->domain, pci->bus = dev->bus, pci->device = dev->device;
    snprintf(pci->legacy, sizeof pci->legacy, "%04X:%02X:%02X.0", dev->domain & 0xFFFF, dev->bus & 0xFF, dev->device & 0xFF);
    snprintf(pci->text, sizeof pci->text, "%08X:%02X:%02X.0", dev->domain, dev->bus, dev->device);
    RETURN(OK);
}

/* --- topology --- */

int nvmlDeviceGetP2PStatus(Handle *handle, Handle *other, unsigned what, unsigned *out) {
    DEVICE(handle);
    Device *peer = device_of(other);
    if (!peer || what != 2) RETURN(INVALID_ARGUMENT);
    *out = NO_NVLINK;
    for (int i = 0; i < dev->n_links; i++) if (!strcmp(dev->links[i], peer->uuid)) *out = OK;
    for (int i = 0; i < peer->n_links; i++) if (!strcmp(peer->links[i], dev->uuid)) *out = OK;
    RETURN(OK);
}
int nvmlDeviceGetTopologyCommonAncestor(Handle *handle, Handle *other, unsigned *out) {
    DEVICE(handle);
    Device *peer = device_of(other);
    if (!peer) RETURN(INVALID_ARGUMENT);
    *out = dev->node == peer->node ? NEAR : SYSTEM;
    RETURN(OK);
}

/* --- MIG --- */

int nvmlDeviceIsMigDeviceHandle(Handle *handle, unsigned *out) { DEVICE(handle); *out = dev->slot >= 0; RETURN(OK); }
int nvmlDeviceGetMigMode(Handle *handle, unsigned *current, unsigned *pending) { DEVICE(handle); *current = *pending = dev->mig; RETURN(OK); }
int nvmlDeviceGetMaxMigDeviceCount(Handle *handle, unsigned *out) { DEVICE(handle); *out = dev->mig ? MIG_SLOTS : 0; RETURN(OK); }
int nvmlDeviceGetMigDeviceHandleByIndex(Handle *handle, unsigned index, Handle **out) {
    DEVICE(handle);
    for (int i = 0; i < world.n; i++) {
        Device *each = &world.devices[i];
        if (each->parent == dev - world.devices && each->slot == (int)index) RETURN(give(__func__, each, out));
    }
    RETURN(NOT_FOUND);
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Handle *handle, Handle **out) {
    DEVICE(handle);
    if (dev->slot < 0) RETURN(INVALID_ARGUMENT);
    RETURN(give(__func__, &world.devices[dev->parent], out));
}
int nvmlDeviceGetGpuInstanceId(Handle *handle, unsigned *out) { DEVICE(handle); if (dev->slot < 0) RETURN(NOT_SUPPORTED); *out = dev->gi; RETURN(OK); }
int nvmlDeviceGetComputeInstanceId(Handle *handle, unsigned *out) { DEVICE(handle); if (dev->slot < 0) RETURN(NOT_SUPPORTED); *out = dev->ci; RETURN(OK); }

/* --- readings --- */

typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
int nvmlDeviceGetMemoryInfo(Handle *handle, Memory *out) {
    DEVICE(handle);
    /* The old call counts what is reserved as used. */
    *out = (Memory){dev->total, dev->total - dev->reserved - dev->used, dev->used + dev->reserved};
    RETURN(OK);
}
int nvmlDeviceGetMemoryInfo_v2(Handle *handle, MemoryV2 *out) {
    DEVICE(handle);
    if (out->version != 0x02000028) RETURN(VERSION_MISMATCH);
    unsigned long long set_aside = getenv("FAKE_GPU") && deviates("reserved_is_free") ? 0 : dev->reserved;
    *out = (MemoryV2){out->version, dev->total, dev->reserved, dev->total - set_aside - dev->used, dev->used};
    RETURN(OK);
}

int nvmlDeviceGetAddressingMode(Handle *handle, unsigned out[2]) {
    DEVICE(handle);
    if (out[0] != 0x01000008) RETURN(VERSION_MISMATCH);
    out[1] = dev->addressing;
    RETURN(dev->addressing ? OK : NOT_SUPPORTED);
}

int nvmlDeviceGetUtilizationRates(Handle *handle, unsigned out[2]) {
    DEVICE(handle);
    if (!dev->has_util) RETURN(NOT_SUPPORTED);
    out[0] = dev->util, out[1] = dev->util_memory;
    RETURN(OK);
}
int nvmlDeviceGetPowerUsage(Handle *handle, unsigned *out) { DEVICE(handle); if (getenv("FAKE_GPU")) energy(dev); *out = dev->power; RETURN(dev->has_power ? OK : NOT_SUPPORTED); }
int nvmlDeviceGetTotalEnergyConsumption(Handle *handle, unsigned long long *out) { DEVICE(handle); *out = getenv("FAKE_GPU") ? energy(dev) : dev->energy; RETURN(dev->has_energy ? OK : NOT_SUPPORTED); }
int nvmlDeviceGetTemperature(Handle *handle, unsigned sensor, unsigned *out) { DEVICE(handle); *out = dev->temperature; RETURN(dev->has_temperature && !sensor ? OK : NOT_SUPPORTED); }

/* What gpustat and nvitop print beside. */
int nvmlDeviceGetPowerManagementLimit(Handle *handle, unsigned *out) { DEVICE(handle); *out = 700000; RETURN(OK); }
int nvmlDeviceGetEnforcedPowerLimit(Handle *handle, unsigned *out) { DEVICE(handle); *out = 700000; RETURN(OK); }
int nvmlDeviceGetFanSpeed(Handle *handle, unsigned *out) { DEVICE(handle); *out = 0; RETURN(NOT_SUPPORTED); }
int nvmlDeviceGetPerformanceState(Handle *handle, unsigned *out) { DEVICE(handle); *out = 0; RETURN(OK); }
int nvmlDeviceGetPersistenceMode(Handle *handle, unsigned *out) { DEVICE(handle); *out = 1; RETURN(OK); }
int nvmlDeviceGetComputeMode(Handle *handle, unsigned *out) { DEVICE(handle); *out = 0; RETURN(OK); }
int nvmlDeviceGetDisplayActive(Handle *handle, unsigned *out) { DEVICE(handle); *out = 0; RETURN(OK); }
int nvmlDeviceGetDisplayMode(Handle *handle, unsigned *out) { DEVICE(handle); *out = 0; RETURN(OK); }
int nvmlDeviceGetEncoderUtilization(Handle *handle, unsigned *out, unsigned *period_us) { DEVICE(handle); *out = 0, *period_us = 1000; RETURN(OK); }
int nvmlDeviceGetDecoderUtilization(Handle *handle, unsigned *out, unsigned *period_us) { DEVICE(handle); *out = 0, *period_us = 1000; RETURN(OK); }
int nvmlDeviceGetCudaComputeCapability(Handle *handle, int *major, int *minor) { DEVICE(handle); *major = 9, *minor = 0; RETURN(OK); }
int nvmlDeviceGetTotalEccErrors(Handle *handle, unsigned kind, unsigned counter, unsigned long long *out) { DEVICE(handle); (void)counter; *out = dev->ecc[kind]; RETURN(OK); }
int nvmlDeviceGetClockInfo(Handle *handle, unsigned kind, unsigned *out) { DEVICE(handle); (void)kind; *out = 1500; RETURN(OK); }
int nvmlDeviceGetMaxClockInfo(Handle *handle, unsigned kind, unsigned *out) { DEVICE(handle); (void)kind; *out = 1980; RETURN(OK); }
int nvmlDeviceGetPcieThroughput(Handle *handle, unsigned counter, unsigned *out) { DEVICE(handle); (void)counter; *out = 0; RETURN(OK); }
int nvmlDeviceGetBAR1MemoryInfo(Handle *handle, Memory *out) { DEVICE(handle); *out = (Memory){256 * MIB, 255 * MIB, 1 * MIB}; RETURN(OK); }

typedef struct { unsigned field, scope; long long at, latency; unsigned type, code; unsigned long long value; } Field;
int nvmlDeviceGetFieldValues(Handle *handle, int n, Field *fields) {
    DEVICE(handle);
    for (int i = 0; i < n; i++) {
        fields[i].type = 1;
        fields[i].code = fields[i].field == 230 ? OK : NOT_SUPPORTED;
        fields[i].value = dev->recovery;
    }
    RETURN(OK);
}

/* --- what is wrong with a GPU that works --- */

int nvmlDeviceGetRemappedRows(Handle *handle, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    DEVICE(handle);
    *corrected = *uncorrected = 0;
    *pending = !!strstr(dev->ails, "row_pending"), *failed = !!strstr(dev->ails, "row_failed");
    RETURN(OK);
}
int nvmlDeviceGetRetiredPagesPendingStatus(Handle *handle, unsigned *out) { DEVICE(handle); *out = !!strstr(dev->ails, "page"); RETURN(strstr(dev->ails, "page") ? OK : NOT_SUPPORTED); }
int nvmlDeviceGetRepairStatus(Handle *handle, unsigned out[3]) { DEVICE(handle); out[1] = !!strstr(dev->ails, "spare"), out[2] = 0; RETURN(OK); }
int nvmlDeviceGetCurrentClocksEventReasons(Handle *handle, unsigned long long *out) { DEVICE(handle); *out = dev->slowed | (deviates("always_hot") ? 0x40 : 4); RETURN(OK); }

typedef struct { unsigned version; unsigned long long counts[11]; unsigned exceeded; } SramStatus;
int nvmlDeviceGetSramEccErrorStatus(Handle *handle, SramStatus *out) { DEVICE(handle); out->exceeded = !!strstr(dev->ails, "sram"); RETURN(OK); }

typedef struct { unsigned version; unsigned char cluster[16]; unsigned status, clique; unsigned char state; unsigned mask; unsigned char health; } Fabric;
int nvmlDeviceGetGpuFabricInfoV(Handle *handle, Fabric *out) { DEVICE(handle); out->health = strstr(dev->ails, "fabric") ? 2 : 1; RETURN(OK); }

/* --- memory limits of cgroups (R615) --- */

typedef struct { const char *cgroup; unsigned long long guaranteed, most; } SetLimits;
typedef struct { const char *cgroup; unsigned long long guaranteed, most, used; } GetLimits;

static int is_cgroup(const char *name) {
    char procs[1024];
    snprintf(procs, sizeof procs, "%s/cgroup.procs", name);
    return !access(procs, F_OK);
}

/* Root only; a limit of the whole driver's maximum, with no guarantee, is none. */
int nvmlDeviceSetMemoryLimits_v1(Handle *handle, const SetLimits *wanted) {
    DEVICE(handle);
    if (dev->slot >= 0) RETURN(NOT_SUPPORTED);
    if (deviates("no_limits")) RETURN(NOT_SUPPORTED);
    if (geteuid()) RETURN(NO_PERMISSION);
    if (!wanted->cgroup || !is_cgroup(wanted->cgroup) || wanted->guaranteed > wanted->most) RETURN(INVALID_ARGUMENT);
    char line[1024], uuid[96], cgroup[512];
    FILE *draft = fopen(limits_file(".new"), "w"), *file = fopen(limits_file(""), "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "%95s %*s %*s %511s", uuid, cgroup) == 2 && is_cgroup(cgroup) &&
            (strcmp(uuid, dev->uuid) || strcmp(cgroup, wanted->cgroup))) fputs(line, draft);
    if (file) fclose(file);
    if (wanted->guaranteed || wanted->most != ~0ULL)
        fprintf(draft, "%s %llu %llu %s\n", dev->uuid, wanted->guaranteed, wanted->most, wanted->cgroup);
    fclose(draft);
    snprintf(line, sizeof line, "%s", limits_file(""));
    rename(limits_file(".new"), line);
    RETURN(OK);
}

int nvmlDeviceGetMemoryLimits_v1(Handle *handle, GetLimits *out) {
    DEVICE(handle);
    if (dev->slot >= 0) RETURN(NOT_SUPPORTED);
    if (!out->cgroup || !is_cgroup(out->cgroup)) RETURN(INVALID_ARGUMENT);
    char line[1024], uuid[96], cgroup[512];
    unsigned long long guaranteed, most;
    out->guaranteed = 0, out->most = ~0ULL;
    FILE *file = fopen(limits_file(""), "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "%95s %llu %llu %511s", uuid, &guaranteed, &most, cgroup) == 4 && !strcmp(uuid, dev->uuid) &&
            !strcmp(cgroup, out->cgroup)) out->guaranteed = guaranteed, out->most = most;
    if (file) fclose(file);
    out->used = getenv("FAKE_GPU") ? taken_in(dev->uuid, out->cgroup) * MIB : 0;
    RETURN(OK);
}

/* --- processes --- */

typedef struct { unsigned pid; unsigned long long bytes; unsigned gi, ci; } ProcessInfo;
static int list(const Device *dev, int which, unsigned *count, ProcessInfo *out) {
    unsigned n = 0, room = *count;
    for (int i = 0; i < dev->n_processes; i++) {
        const Process *process = &dev->processes[i];
        if (process->list != which) continue;
        if (out && n < room) out[n] = (ProcessInfo){process->pid, process->bytes, dev->gi, dev->ci};
        n++;
    }
    *count = n;
    return n > room || (!out && n) ? INSUFFICIENT_SIZE : OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(Handle *handle, unsigned *count, ProcessInfo *out) { DEVICE(handle); RETURN(list(dev, COMPUTE, count, out)); }
int nvmlDeviceGetMPSComputeRunningProcesses_v3(Handle *handle, unsigned *count, ProcessInfo *out) { DEVICE(handle); RETURN(list(dev, MPS, count, out)); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(Handle *handle, unsigned *count, ProcessInfo *out) { DEVICE(handle); RETURN(list(dev, GRAPHICS, count, out)); }

typedef struct { unsigned pid; unsigned long long at_us; unsigned sm, memory, encoder, decoder; } UtilizationSample;
int nvmlDeviceGetProcessUtilization(Handle *handle, UtilizationSample *out, unsigned *count, unsigned long long since_us) {
    DEVICE(handle);
    if (dev->slot >= 0) RETURN(NOT_SUPPORTED);
    unsigned n = 0, room = *count;
    for (int i = 0; i < dev->n_samples; i++) {
        const Sample *sample = &dev->samples[i];
        if (!dev->stale_samples && sample->at_us <= since_us) continue;
        if (out && n < room) out[n] = (UtilizationSample){sample->pid, sample->at_us, sample->sm, 0, 0, 0};
        n++;
    }
    *count = n;
    RETURN(!n ? NOT_FOUND : n > room || !out ? INSUFFICIENT_SIZE : OK);
}

/* --- events --- */

typedef struct { char gpus[MAX_DEVICES][96]; unsigned long long masks[MAX_DEVICES], seen; int n, is_xid; unsigned severities[MAX_DEVICES]; } EventSet;
typedef struct { Handle *device; unsigned long long type, data; unsigned gi, ci; } EventData;

int nvmlEventSetCreate(EventSet **out) {
    ENTER;
    note(__func__, "-");
    *out = calloc(1, sizeof **out);
    /* Earlier events are not replayed. */
    for (int i = 0; i < world.n; i++)
        for (int j = 0; j < world.devices[i].n_events; j++)
            if (world.devices[i].events[j].seq > (*out)->seen) (*out)->seen = world.devices[i].events[j].seq;
    RETURN(OK);
}
int nvmlEventSetFree(EventSet *set) { note(__func__, "-"); free(set); return OK; }
int nvmlDeviceGetSupportedEventTypes(Handle *handle, unsigned long long *out) { DEVICE(handle); *out = dev->event_types; RETURN(OK); }
int nvmlDeviceRegisterEvents(Handle *handle, unsigned long long mask, EventSet *set) {
    DEVICE(handle);
    if (mask & ~dev->event_types) RETURN(NOT_SUPPORTED);
    strcpy(set->gpus[set->n], dev->uuid);
    set->masks[set->n++] = mask;
    RETURN(OK);
}

static int next_event(EventSet *set, EventData *out) {
    int code = enter();
    if (code) return code;
    for (int i = 0; i < world.n; i++) {
        Device *dev = &world.devices[i];
        for (int r = 0; r < set->n; r++) {
            if (strcmp(set->gpus[r], dev->uuid)) continue;
            for (int j = 0; j < dev->n_events; j++) {
                const Event *event = &dev->events[j];
                if (event->seq <= set->seen || !(event->type & set->masks[r])) continue;
                set->seen = event->seq;
                *out = (EventData){handle_of(dev), event->type, event->data, event->instance, event->instance};
                return OK;
            }
        }
    }
    return TIMEOUT;
}
int nvmlEventSetWait_v2(EventSet *set, EventData *out, unsigned timeout_ms) {
    for (unsigned waited = 0;; waited += 5) {
        pthread_mutex_lock(&lock);
        int code = next_event(set, out);
        pthread_mutex_unlock(&lock);
        if (code != TIMEOUT || waited >= timeout_ms) return code;
        usleep(5000);
    }
}

/* Operational events (R615), in a set of their own. */
typedef struct { char uuid[96]; unsigned log_level, severity; } OperationalConfig;
typedef struct {
    unsigned timeout_ms, data_type;
    char uuid[96], module[16];
    unsigned long long type, data, cursor, instance, timestamp, trace;
    unsigned gi, ci, severity, category, code, scope, originator, module_instance, chiplet, log_level, attributes, cper, group;
    unsigned char size, index;
} OperationalData;
typedef struct { unsigned index, kind, source, size; unsigned short version; } Context;

int nvmlEventSetRegisterGpuOperationalEvents_v1(EventSet *set, const OperationalConfig *config) {
    ENTER;
    if (!getenv("FAKE_NVML_OPERATIONAL")) RETURN(NOT_SUPPORTED);
    set->severities[set->n] = config->severity;
    strcpy(set->gpus[set->n++], config->uuid);
    RETURN(OK);
}
int nvmlEventSetWait_v3(EventSet *set, OperationalData *out) {
    ENTER;
    for (int i = 0; i < world.n; i++)
        for (int r = 0; r < set->n; r++) {
            Device *dev = &world.devices[i];
            for (int j = 0; j < dev->n_operational && !strcmp(set->gpus[r], dev->uuid); j++) {
                const Operational *event = &dev->operational[j];
                if (event->seq <= set->seen || event->severity < set->severities[r]) continue;
                set->seen = event->seq, set->is_xid = event->is_xid;
                *out = (OperationalData){.data_type = 1, .module = "GPU-NVLINK", .gi = NO_INSTANCE, .ci = NO_INSTANCE,
                                         .severity = event->severity, .category = 3, .code = 5, .group = event->attributes};
                strcpy(out->uuid, dev->uuid);
                RETURN(OK);
            }
        }
    RETURN(TIMEOUT);
}
int nvmlEventSetGetContextCount_v1(EventSet *set, unsigned *count) { (void)set; *count = 1; return OK; }
int nvmlEventSetGetContextInfo_v1(EventSet *set, Context *out) { out->kind = set->is_xid; return OK; }

/* --- GPM --- */

typedef struct { char uuid[96]; double values[GPM_METRICS]; int codes[GPM_METRICS]; double at_ms; } GpmSample;
typedef struct { unsigned id, code; double value; char *names[3]; } GpmMetric;
typedef struct { unsigned version, n; GpmSample *first, *second; GpmMetric metrics[]; } GpmQuery;
typedef struct { unsigned version, supported; } GpmSupport;

int nvmlGpmQueryDeviceSupport(Handle *handle, GpmSupport *out) {
    DEVICE(handle);
    if (out->version != 1) RETURN(VERSION_MISMATCH);
    out->supported = dev->has_gpm;
    RETURN(OK);
}
int nvmlGpmSampleAlloc(GpmSample **out) { ENTER; note(__func__, "-"); *out = calloc(1, sizeof **out); RETURN(OK); }
int nvmlGpmSampleFree(GpmSample *sample) { note(__func__, "-"); free(sample); return OK; }

static int fill(const Device *dev, GpmSample *sample) {
    struct timespec now;
    if (!dev->has_gpm) return NOT_SUPPORTED;
    clock_gettime(CLOCK_MONOTONIC, &now);
    strcpy(sample->uuid, dev->uuid);
    memcpy(sample->values, dev->gpm, sizeof dev->gpm);
    memcpy(sample->codes, dev->gpm_code, sizeof dev->gpm_code);
    sample->at_ms = now.tv_sec * 1e3 + now.tv_nsec / 1e6;
    return OK;
}
int nvmlGpmSampleGet(Handle *handle, GpmSample *sample) { DEVICE(handle); RETURN(fill(dev, sample)); }
int nvmlGpmMigSampleGet(Handle *handle, unsigned gi, GpmSample *sample) {
    DEVICE(handle);
    for (int i = 0; i < world.n; i++)
        if (world.devices[i].parent == dev - world.devices && world.devices[i].gi == (int)gi)
            RETURN(fill(&world.devices[i], sample));
    RETURN(INVALID_ARGUMENT);
}
int nvmlGpmMetricsGet(GpmQuery *query) {
    ENTER;
    if (query->version != 1) RETURN(VERSION_MISMATCH);
    if (strcmp(query->first->uuid, query->second->uuid) || query->second->at_ms - query->first->at_ms < 100)
        RETURN(INVALID_ARGUMENT);
    for (unsigned i = 0; i < query->n; i++) {
        unsigned id = query->metrics[i].id;
        if (id >= GPM_METRICS) RETURN(INVALID_ARGUMENT);
        query->metrics[i].code = query->second->codes[id];
        query->metrics[i].value = query->second->values[id];
    }
    RETURN(OK);
}
