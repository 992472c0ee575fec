"""From one tensor-core instruction to an attention tile: one idea a file, each readable top to bottom.

    step1_one_mma           one tcgen05.mma on BF16: TMA in, the product in tensor memory, registers, memory
    step2_k_loop            many of them: a loop along K, fed by a ring of TMA loads
    step3_block_scaled      MXFP8: block-scaled products, scale factors on their way into tensor memory
    step4_quantizer         an accumulator quantized where it lies, the operand of the next product
    step5_attention_tile    softmax between two products: one attention tile
    step6_kv_loop           any number of keys: the simplest correct MXFP8 attention
    step7_warp_specialised  the same with a role for each warp, overlapped

Every step has the same shape, in this order: a docstring that says what is new, the constraints, the map of tensor
memory and the barriers; `arguments(...)`, which checks torch tensors and turns them into what the kernel takes; the host
function (@cute.jit), which chooses layouts and launches; the kernel (@cute.kernel); its phases. What an earlier step has
explained is imported from there. To run one:

    args = step1_one_mma.arguments(a, b, d)
    compiled = compile_kernel(step1_one_mma.one_mma, *args)
    report = mxfp8fa.emulator.run(compiled, *args)          # d holds the product
"""
