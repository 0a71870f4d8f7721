/* Runs the parallel loops of TVM kernels on the OpenMP threads that torch already has.
 *
 * TVM's own runtime brings a second thread pool; two pools on the same cores wait for each other.
 * A kernel library calls its runtime through pointers that tvm_ffi fills in from registered
 * symbols, so registering these is all there is to it. Compiled by tvm_runtime.py.
 */
#include <omp.h>
#include <stdint.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))

enum { ALIGNMENT = 64 };

/* What TVM's generated code hands to a task: its share is task_id of num_task. */
typedef struct {
  void *sync_handle;
  int32_t num_task;
} ParallelGroup;

typedef int (*Task)(int task_id, ParallelGroup *group, void *closure);

/* From libtvm_ffi, which is loaded before this library. */
extern int TVMFFIEnvModRegisterContextSymbol(const char *name, void *symbol);
extern void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message);

/* num_task 0 means as many as there are threads; the result is 0, or nonzero if a task failed. */
EXPORT int eqsynth_parallel_launch(Task task, void *closure, int num_task) {
  /* Inside a parallel region the other threads are busy: a nested loop runs on this one. */
  const int threads = omp_in_parallel() ? 1 : omp_get_max_threads();
  ParallelGroup group = {NULL, num_task > 0 ? num_task : threads};
  int failed = 0;
  if (threads == 1 || group.num_task == 1) {
    for (int id = 0; id < group.num_task && !failed; ++id) failed = task(id, &group, closure);
    return failed;
  }
  const int team = group.num_task < threads ? group.num_task : threads;
#pragma omp parallel num_threads(team) reduction(| : failed)
  {
    /* The team may be smaller than asked for (OMP_DYNAMIC, a thread limit). */
    const int stride = omp_get_num_threads();
    for (int id = omp_get_thread_num(); id < group.num_task; id += stride)
      failed |= task(id, &group, closure);
  }
  /* An error that a task raised stays with its thread: the caller needs one of its own. */
  if (failed) TVMFFIErrorSetRaisedFromCStr("RuntimeError", "a task of a TVM kernel failed");
  return failed;
}

/* Tasks of one launch may share a thread, so none can wait for another. */
EXPORT int eqsynth_parallel_barrier(int task_id, ParallelGroup *group) {
  (void)task_id;
  (void)group;
  TVMFFIErrorSetRaisedFromCStr("RuntimeError", "eqsynth's TVM kernels have no barriers");
  return -1;
}

EXPORT void *eqsynth_alloc_workspace(int device_type, int device_id, uint64_t bytes, int code,
                                     int bits) {
  (void)device_type, (void)device_id, (void)code, (void)bits;
  void *memory = NULL;
  if (bytes > SIZE_MAX || posix_memalign(&memory, ALIGNMENT, bytes ? (size_t)bytes : 1) != 0) {
    TVMFFIErrorSetRaisedFromCStr("MemoryError", "no memory for a TVM kernel's workspace");
    return NULL;
  }
  return memory;
}

EXPORT int eqsynth_free_workspace(int device_type, int device_id, void *memory) {
  (void)device_type, (void)device_id;
  free(memory);
  return 0;
}

/* Registers the above for every library loaded from now on; 0 on success. */
EXPORT int eqsynth_install(void) {
  static const struct {
    const char *name;
    void *symbol;
  } table[] = {
      {"__TVMBackendParallelLaunch", (void *)eqsynth_parallel_launch},
      {"__TVMBackendParallelBarrier", (void *)eqsynth_parallel_barrier},
      {"__TVMBackendAllocWorkspace", (void *)eqsynth_alloc_workspace},
      {"__TVMBackendFreeWorkspace", (void *)eqsynth_free_workspace},
  };
  for (size_t i = 0; i < sizeof table / sizeof *table; ++i)
    if (TVMFFIEnvModRegisterContextSymbol(table[i].name, table[i].symbol) != 0) return -1;
  return 0;
}
