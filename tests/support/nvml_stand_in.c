/* A libnvidia-ml.so.1 whose GPUs live in a file that the test writes: see tests/support/nvml.py for its layout. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct gpu {
    uint64_t energy_mj;
    uint32_t power_mw, limit_mw, least_mw, most_mw;
    int32_t energy_rc, power_rc, limit_rc, set_rc, mig_rc;
    uint32_t mig, sets, pad;
    char name[64], uuid[64];
};

struct machine {
    int32_t init_rc;
    uint32_t count;
    struct gpu gpus[4];
};

static struct machine *machine;

enum { SUCCESS = 0, INVALID = 2, UNINITIALIZED = 1, DRIVER_NOT_LOADED = 9 };

int nvmlInit_v2(void) {
    const char *path = getenv("CONSERVE_STAND_IN_NVML");
    if (path == NULL) return DRIVER_NOT_LOADED;
    int file = open(path, O_RDWR);
    if (file < 0) return DRIVER_NOT_LOADED;
    void *at = mmap(NULL, sizeof *machine, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (at == MAP_FAILED) return DRIVER_NOT_LOADED;
    if (machine != NULL) munmap(machine, sizeof *machine);
    machine = at;
    return machine->init_rc;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; return nvmlInit_v2(); }
int nvmlShutdown(void) { return machine == NULL ? UNINITIALIZED : SUCCESS; }

const char *nvmlErrorString(int code) {
    static char text[32];
    snprintf(text, sizeof text, "stand-in error %d", code);
    return text;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    if (machine == NULL) return UNINITIALIZED;
    *count = machine->count;
    return SUCCESS;
}

/* A handle is the place counted from 1: mappings may move. */
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if (machine == NULL) return UNINITIALIZED;
    if (index >= machine->count) return INVALID;
    *device = (void *)(uintptr_t)(index + 1);
    return SUCCESS;
}

static struct gpu *of(void *device) { return &machine->gpus[(uintptr_t)device - 1]; }

static int text(const char *from, char *to, unsigned size) {
    snprintf(to, size, "%s", from);
    return SUCCESS;
}

int nvmlDeviceGetName(void *device, char *to, unsigned size) { return text(of(device)->name, to, size); }
int nvmlDeviceGetUUID(void *device, char *to, unsigned size) { return text(of(device)->uuid, to, size); }

int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *energy) {
    *energy = of(device)->energy_mj;
    return of(device)->energy_rc;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *power) {
    *power = of(device)->power_mw;
    return of(device)->power_rc;
}

int nvmlDeviceGetPowerManagementLimit(void *device, unsigned *limit) {
    *limit = of(device)->limit_mw;
    return of(device)->limit_rc;
}

int nvmlDeviceGetPowerManagementLimitConstraints(void *device, unsigned *least, unsigned *most) {
    *least = of(device)->least_mw;
    *most = of(device)->most_mw;
    return of(device)->limit_rc;
}

int nvmlDeviceSetPowerManagementLimit(void *device, unsigned limit) {
    struct gpu *gpu = of(device);
    if (gpu->set_rc != SUCCESS) return gpu->set_rc;
    gpu->limit_mw = limit;
    gpu->sets++;
    return SUCCESS;
}

int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *pending) {
    *now = *pending = of(device)->mig;
    return of(device)->mig_rc;
}
