// One CUDA C++ program whose PTX has what CuTe DSL kernels lack: functions, calls, local arrays, constants, switches,
// initial values with addresses, function pointers, printf, clusters, inlined source locations.
#include <cstdio>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

struct Record {
    int numbers[20];
    double scale;
};

__constant__ float coefficients[4] = {1.5f, -2.25f, 3e-5f, 1e30f};
__device__ int table[3][2] = {{1, 2}, {3, 4}, {5, 6}};
__device__ const char *names[2] = {"he\"llo\n", "wo\trld"};
__device__ double factor = 3.25;
extern __shared__ char dynamic[];

__device__ __noinline__ int triple(int x) { return x * 3; }
__device__ __noinline__ Record bump(Record r, int i) {
    r.numbers[i] += 1;
    return r;
}
__device__ inline int mix(int a, int b) { return __dp4a(a, b, a) ^ __byte_perm(a, b, 0x5410); }

#ifdef INDIRECT
__device__ __noinline__ int fibonacci(int x) { return x < 2 ? x : fibonacci(x - 1) + fibonacci(x - 2); }
__device__ int (*operations[2])(int) = {triple, fibonacci};
#endif

extern "C" __global__ void __launch_bounds__(256, 2) features(const int *__restrict__ in, int *out, int n, Record r) {
    __shared__ int buffer[256];
    __shared__ alignas(16) char small[3];
    int local[32];
    for (int i = 0; i < 32; i++) local[i] = in[i];
    int t = threadIdx.x, v = local[in[t] & 31];
    buffer[t] = v;
    small[t % 3] = v;
    __syncthreads();
    switch (in[t]) {
        case 0: v += 1; break;
        case 1: v ^= out[3]; break;
        case 2: v = triple(v); break;
        case 3: v = __popc(v); break;
        case 4: v = buffer[t ^ 1]; break;
        case 5: v = small[2]; break;
        case 6: v = __clz(v); break;
        default: v = 0;
    }
#ifdef INDIRECT
    v += operations[t & 1](v);
#endif
    v += table[t % 3][n & 1] + (int)coefficients[t & 3] + names[t & 1][t & 3];
    if (v == 77) printf("v %d %s\n", v, names[0]);
    r = bump(r, t & 15);
    v += r.numbers[t & 15] + (int)(r.scale * factor);
    atomicAdd(out + 5, v);
    ((int *)dynamic)[t] = v;
    v = __shfl_xor_sync(~0u, v, 1);
    v += mix(v, n);
    out[t] = __any_sync(~0u, v == 3) ? v : ((int *)dynamic)[t ^ 3];
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) halves(float *out, __half2 h, __nv_bfloat162 b) {
    out[threadIdx.x] = __low2float(__hfma2(h, h, h)) + __low2float(__hadd2(b, b)) + sqrtf(out[1]) + sinf(out[3]);
    asm volatile("{ .reg .pred again; AGAIN: setp.eq.s32 again, 1, 2; @again bra AGAIN; }");
}
