// A driver in trouble, for tests: two cards, of which the second has fallen off the bus. With MEMROOM_TEST_HANG set, the
// call for utilisation does not return for a long time. Newer calls (MIG) are missing, as in an old driver.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned n) { strncpy(text, "580.1", n); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *v) { *v = 13010; return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **handle) { *handle = (void *)(uintptr_t)(i + 1); return i == 1 ? 15 : 0; }
int nvmlDeviceGetName(void *d, char *text, unsigned n) { strncpy(text, "Test Card", n); return 0; }
int nvmlDeviceGetUUID(void *d, char *text, unsigned n) { strncpy(text, "GPU-1234", n); return 0; }
int nvmlDeviceGetMemoryInfo(void *d, uint64_t *m) { m[0] = 1000 << 20; m[1] = 400 << 20; m[2] = 600 << 20; return 0; }
int nvmlDeviceGetCudaComputeCapability(void *d, int *major, int *minor) { *major = 9; *minor = 0; return 0; }
int nvmlDeviceGetUtilizationRates(void *d, unsigned *u) { if (getenv("MEMROOM_TEST_HANG")) sleep(3); u[0] = 42; u[1] = 7; return 0; }
struct process { unsigned pid; uint64_t used; unsigned gi, ci; };
int nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned *n, struct process *p) {
  if (*n < 70) { *n = 70; return 7; } // more processes than the first buffer holds
  for (unsigned i = 0; i < 70; i++) p[i] = (struct process){1000 + i, i ? 5 << 20 : UINT64_MAX, 0, 0};
  *n = 70;
  return 0;
}
