// CUDA's source run on the CPU: a block's threads are fibers, each of which runs until it comes to a
// barrier or to its end. So a thread sees of the others only what a barrier has put in order: where
// one is missing, it reads shared memory that nobody has written yet, or writes what others still read.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ucontext.h>
#include <algorithm>
#include <vector>

using std::max;
using std::min;
typedef unsigned int uint;
typedef unsigned char uchar;

#define __global__
#define __device__
#define __launch_bounds__(n)
#define __shared__ static
#define CUDART_INF_F ((float)INFINITY)
#define CUDART_NAN_F ((float)NAN)
#define CUDART_INF ((double)INFINITY)
#define CUDART_NAN ((double)NAN)
#define __fadd_rn(a, b) ((float)((volatile float)(a) + (volatile float)(b)))
#define __dadd_rn(a, b) ((double)(a) + (double)(b))

struct half {
  _Float16 value;
  half() = default;
  half(float x) : value((_Float16)x) {}
  operator float() const { return (float)value; }
};

template <typename T> struct alignas(2 * sizeof(T)) Two { T x, y; };
template <typename T> struct alignas(4 * sizeof(T)) Four { T x, y, z, w; };
typedef Two<float> float2;     typedef Four<float> float4;
typedef Two<int> int2;         typedef Four<int> int4;
typedef Two<uint> uint2;       typedef Four<uint> uint4;
typedef Two<ushort> ushort2;   typedef Four<ushort> ushort4;
static float2 make_float2(float x, float y) { return {x, y}; }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static int2 make_int2(int x, int y) { return {x, y}; }
static int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
static uint2 make_uint2(uint x, uint y) { return {x, y}; }
static uint4 make_uint4(uint x, uint y, uint z, uint w) { return {x, y, z, w}; }

struct Dim { int x, y, z; };
static Dim threadIdx, blockIdx;

static ucontext_t scheduler;
static std::vector<ucontext_t> fibers;
static std::vector<char> ended;
static std::vector<int> barriers;
static void (*body)(void **);
static void **given;

static void __syncthreads() {
  int self = threadIdx.x;
  barriers[self]++;
  swapcontext(&fibers[self], &scheduler);
}

static void run_fiber() {
  int self = threadIdx.x;
  body(given);
  ended[self] = 1;
}

// 0, or 1 where not all threads of a block come to the same barriers.
extern "C" int launch(void (*kernel)(void **), void **arguments, int blocks, int threads, int backwards) {
  const size_t stack = 1 << 16;
  char *stacks = (char *)std::malloc(stack * threads);
  body = kernel, given = arguments;
  fibers.resize(threads);
  for (int b = 0; b < blocks; ++b) {
    ended.assign(threads, 0), barriers.assign(threads, 0);
    blockIdx = {backwards ? blocks - 1 - b : b, 0, 0};
    for (int t = 0; t < threads; ++t) {
      getcontext(&fibers[t]);
      fibers[t].uc_stack.ss_sp = &stacks[stack * t];
      fibers[t].uc_stack.ss_size = stack;
      fibers[t].uc_link = &scheduler;
      makecontext(&fibers[t], run_fiber, 0);
    }
    for (bool going = true; going;) {
      going = false;
      for (int k = 0; k < threads; ++k) {
        int t = backwards ? threads - 1 - k : k;
        if (ended[t]) continue;
        threadIdx = {t, 0, 0};
        swapcontext(&scheduler, &fibers[t]);
        going = going || !ended[t];
      }
      for (int t = 1; t < threads; ++t)
        if (barriers[t] != barriers[0] || ended[t] != ended[0]) return std::free(stacks), 1;
    }
  }
  std::free(stacks);
  return 0;
}
