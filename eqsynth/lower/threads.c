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

/* The beginning of every object of tvm_ffi, and a value that refers to an object (tvm/ffi/c_api.h). */
typedef struct {
  uint64_t references;
  int32_t type_index;
} Object;

typedef struct {
  int32_t type_index;
  uint32_t zero;
  const void *object;
} Any;

/* A kernel's function, and the tensors that it is called with. */
typedef struct {
  void *function;
  const Object *const *tensors;
  int32_t count;
} Call;

/* From libtvm_ffi, which is loaded before this library. */
extern int TVMFFIFunctionCall(void *function, Any *args, int32_t count, Any *result);
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

/* Calls kernels one after the other, which saves the time in which Python would call each: 0.4 us.
 * Returns the number of calls that succeeded; the first that fails is the last. */
EXPORT int64_t eqsynth_run(const Call *calls, int64_t count) {
  for (int64_t k = 0; k < count; ++k) {
    Any args[calls[k].count], result = {0, 0, NULL};
    for (int32_t n = 0; n < calls[k].count; ++n) {
      const Object *tensor = calls[k].tensors[n];
      args[n] = (Any){tensor->type_index, 0, tensor};
    }
    if (TVMFFIFunctionCall(calls[k].function, args, calls[k].count, &result) != 0) return k;
  }
  return count;
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
