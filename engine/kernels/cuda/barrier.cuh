// mbarriers in shared memory. An arrival releases what its thread did before, a wait acquires it.
#pragma once

#include "common.cuh"

__device__ inline u32 shared_address(const void* p) { return u32(__cvta_generic_to_shared(p)); }

__device__ inline void barrier_init(u64* b, u32 arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals) : "memory");
}

__device__ inline void barrier_arrive(u64* b) {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(shared_address(b)) : "memory");
}

/// Waits for the end of the phase of this parity.
__device__ inline void barrier_wait(u64* b, u32 parity) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n@!done bra again;\n}" ::"r"(
            shared_address(b)),
        "r"(parity)
        : "memory");
#else
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n@!done bra again;\n}" ::"r"(
            shared_address(b)),
        "r"(parity)
        : "memory");
#endif
}

#if __CUDA_ARCH__ >= 900

/// The arrival that announces `bytes` of bulk copies.
__device__ inline void barrier_expect(u64* b, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes) : "memory");
}

/// Copies to shared memory in the background; addresses and size are multiples of 16.
__device__ inline void copy_bulk(u32 to, const u8* from, u32 bytes, u64* b) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(shared_address(b))
                 : "memory");
}

// ---- Clusters: addresses in the shared memory of another thread block ----

__device__ inline u32 cluster_address(u32 shared, u32 rank) {
    u32 address;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared), "r"(rank));
    return address;
}
/// Stores 16 bytes and counts them at the barrier beside them.
__device__ inline void cluster_store(u32 to, float a, float b, float c, float d, u32 barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to), "f"(a),
                 "f"(b), "f"(c), "f"(d), "r"(barrier)
                 : "memory");
}
__device__ inline void cluster_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void cluster_wait(u64* b, u32 parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n@!done bra "
        "again;\n}" ::"r"(shared_address(b)),
        "r"(parity)
        : "memory");
}
/// Every thread of the cluster.
__device__ inline void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

#endif
