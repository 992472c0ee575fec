"""Solutions to the exercises of 04_seeing_a_pipeline.ipynb."""


def fence_in_store():
    return 'cute.arch.fence_proxy("async.shared", space="cta")', "tile[thread] = cutlass.Float32(thread)"


def fence_in_announce():
    return "cute.arch.mbarrier_init_fence()", "cute.arch.mbarrier_init(full, 1)"


def fence_in_tensor():
    return "cute.arch.fence_view_async_tmem_store()", "cute.copy(store_op, values, mine)"
