"""The linear layer and GEGLU in one kernel, for NVIDIA's Hopper.

Of z (M, 2 F) = x (M, K) @ weight (2 F, K)^T + bias the kernel makes tiles that
have columns of the first half beside the same columns of the second, and of
each tile one of h (M, F). The warps of a program have different tasks, which
run at the same time: eight multiply, and have x and weight loaded two steps
ahead (TMA); four gate what was multiplied before, and store it. So the tensor
cores go on while GELU is computed, which in a matmul's own epilogue would take
half of the time at K = 512.

Programs walk over tiles; all waiting is by barriers in shared memory, in an
order that is fixed: the result has the same bits each time.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from speechbrain_triton.ops.geglu_linear.hopper_gating import gelu, product
from speechbrain_triton.ops.geglu_linear.mask import is_kept


@gluon.jit
def place_of(tile, tiles_m, tiles_f: gl.constexpr, GROUP_M: gl.constexpr):
    """Row and column of a tile, in tiles."""
    first = tile // (GROUP_M * tiles_f) * GROUP_M
    rest = tile % (GROUP_M * tiles_f)
    m = first + rest % GROUP_M
    f = rest // GROUP_M
    if first + GROUP_M > tiles_m:
        # Division by a number that is not a constant takes a hundred steps.
        size = gl.maximum(tiles_m - first, 1)
        m = first + rest % size
        f = rest // size
    return m, f


@gluon.jit
def load_step(
    x_desc,
    weight_desc,
    x_smem,
    weight_smem,
    full,
    stage,
    m,
    f,
    k,
    there,
    F: gl.constexpr,
):
    """Begin to fill a stage with what step k of a tile multiplies.

    That is BLOCK_K columns of x and of both halves of weight.
    """
    BLOCK_M: gl.constexpr = x_desc.block_type.shape[0]
    BLOCK_K: gl.constexpr = x_desc.block_type.shape[1]
    BLOCK_F: gl.constexpr = weight_desc.block_type.shape[0]
    bar = full.index(stage)
    weight = weight_smem.index(stage)
    mbarrier.expect(bar, (BLOCK_M + 2 * BLOCK_F) * BLOCK_K * 2, pred=there)
    tma.async_copy_global_to_shared(
        x_desc,
        [m * BLOCK_M, k * BLOCK_K],
        bar,
        x_smem.index(stage),
        pred=there,
    )
    for half in gl.static_range(2):
        tma.async_copy_global_to_shared(
            weight_desc,
            [half * F + f * BLOCK_F, k * BLOCK_K],
            bar,
            weight.slice(half * BLOCK_F, BLOCK_F),
            pred=there,
        )


@gluon.jit
def load_bias(bias_ptr, f, BLOCK_F: gl.constexpr, F: gl.constexpr, there):
    """What is added to the columns of a tile, one a thread."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    column = gl.arange(0, 2 * BLOCK_F, layout)
    column += f * BLOCK_F + gl.where(column < BLOCK_F, 0, F - BLOCK_F)
    return gl.load(bias_ptr + column, mask=there, other=0.0).to(gl.float32)


@gluon.jit
def multiply_tiles(
    x_desc,
    weight_desc,
    bias_ptr,
    x_smem,
    weight_smem,
    z_smem,
    full,
    z_full,
    z_empty,
    tiles_m,
    tiles_f: gl.constexpr,
    F: gl.constexpr,
    STEPS: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP_M: gl.constexpr,
):
    """Tiles of z, handed on in shared memory."""
    AHEAD: gl.constexpr = STAGES - 1
    gl.static_assert(STEPS >= AHEAD, "a tile has fewer steps than are ahead")
    BLOCK_M: gl.constexpr = z_smem.shape[1]
    BLOCK_F: gl.constexpr = z_smem.shape[2]
    # One instruction for all columns, so that it reads x but once: it is the
    # bandwidth of shared memory that limits the product.
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        [3, 0], [gl.num_warps(), 1], [16, 2 * BLOCK_F, 16]
    )
    tile = gl.program_id(0)
    m, f = place_of(tile, tiles_m, tiles_f, GROUP_M)
    for early in gl.static_range(AHEAD):
        load_step(
            x_desc,
            weight_desc,
            x_smem,
            weight_smem,
            full,
            early,
            m,
            f,
            early,
            True,
            F,
        )
    if bias_ptr is not None:
        bias = load_bias(bias_ptr, f, BLOCK_F, F, True)
    step = 0
    turn = 0
    while tile < tiles_m * tiles_f:
        next_tile = tile + gl.num_programs(0)
        goes_on = next_tile < tiles_m * tiles_f
        next_m, next_f = place_of(next_tile, tiles_m, tiles_f, GROUP_M)
        acc = gl.zeros((BLOCK_M, 2 * BLOCK_F), gl.float32, layout)
        if bias_ptr is not None:
            row = gl.convert_layout(bias, gl.SliceLayout(0, layout))
            acc, _ = gl.broadcast(row[None, :], acc)
            # That of the next tile, ahead of its use.
            bias = load_bias(bias_ptr, next_f, BLOCK_F, F, goes_on)
        for k in range(STEPS):
            stage = step % STAGES
            mbarrier.wait(full.index(stage), step // STAGES & 1)
            acc = warpgroup_mma(
                x_smem.index(stage),
                weight_smem.index(stage).permute((1, 0)),
                acc,
                is_async=True,
            )
            # The step before this one is through: its stage is free.
            acc = warpgroup_mma_wait(num_outstanding=1, deps=(acc,))
            here = k + AHEAD < STEPS
            load_step(
                x_desc,
                weight_desc,
                x_smem,
                weight_smem,
                full,
                (step + AHEAD) % STAGES,
                gl.where(here, m, next_m),
                gl.where(here, f, next_f),
                gl.where(here, k + AHEAD, k + AHEAD - STEPS),
                here | goes_on,
                F,
            )
            step += 1
        acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
        z = acc.to(z_smem.dtype)
        first, second = (
            z.reshape((BLOCK_M, 2, BLOCK_F)).permute((0, 2, 1)).split()
        )
        mbarrier.wait(z_empty, (turn & 1) ^ 1)
        z_smem.index(0).store(first)
        z_smem.index(1).store(second)
        mbarrier.arrive(z_full)
        turn += 1
        tile, m, f = next_tile, next_m, next_f


@gluon.jit
def gate_tiles(
    z_ptr,
    h_ptr,
    z_smem,
    z_full,
    z_empty,
    M,
    tiles_m,
    tiles_f: gl.constexpr,
    seed_low,
    seed_high,
    threshold,
    scale,
    F: gl.constexpr,
    ROWS: gl.constexpr,
    GROUP_M: gl.constexpr,
    TANH: gl.constexpr,
    DROPOUT: gl.constexpr,
):
    """h of each tile of z; where backward is to come, z too, as it is."""
    BLOCK_M: gl.constexpr = z_smem.shape[1]
    BLOCK_F: gl.constexpr = z_smem.shape[2]
    lanes: gl.constexpr = [256 // BLOCK_F, BLOCK_F // 8]
    warps: gl.constexpr = [gl.num_warps(), 1]
    layout: gl.constexpr = gl.BlockedLayout([1, 8], lanes, warps, [1, 0])
    halves: gl.constexpr = gl.BlockedLayout([1, 4], lanes, warps, [1, 0])
    row = gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    columns = gl.arange(0, BLOCK_F, gl.SliceLayout(0, layout))[None, :]
    half_row = gl.arange(0, ROWS, gl.SliceLayout(1, halves))
    pairs = gl.arange(0, BLOCK_F // 2, gl.SliceLayout(0, halves))[None, :]
    turn = 0
    for tile in range(gl.program_id(0), tiles_m * tiles_f, gl.num_programs(0)):
        m, f = place_of(tile, tiles_m, tiles_f, GROUP_M)
        mbarrier.wait(z_full, turn & 1)
        for start in gl.static_range(0, BLOCK_M, ROWS):
            first = z_smem.index(0).slice(start, ROWS).load(layout)
            second = z_smem.index(1).slice(start, ROWS).load(layout)
            gate = gelu(second.to(gl.float32), TANH)
            if DROPOUT:
                even, odd = is_kept(
                    (m * BLOCK_M + start + half_row)[:, None],
                    f * (BLOCK_F // 2) + pairs,
                    seed_low,
                    seed_high,
                    threshold,
                )
                kept = gl.join(even, odd).reshape((ROWS, BLOCK_F))
                kept = gl.convert_layout(kept, layout, assert_trivial=True)
                gate = gl.where(kept, gate * scale, 0.0)
            h = product(first, gate.to(first.dtype))
            rows = (m * BLOCK_M + start + row)[:, None]
            offs = rows.to(gl.int64) * F + (f * BLOCK_F + columns)
            gl.store(h_ptr + offs, h, mask=rows < M)
            if z_ptr is not None:
                wide = offs + rows.to(gl.int64) * F
                gl.store(z_ptr + wide, first, mask=rows < M)
                gl.store(z_ptr + F + wide, second, mask=rows < M)
        mbarrier.arrive(z_empty)
        turn += 1


@gluon.jit(
    do_not_specialize=["M", "seed_low", "seed_high", "threshold", "scale"]
)
def geglu_linear_hopper_kernel(
    x_desc,
    weight_desc,
    z_ptr,
    h_ptr,
    bias_ptr,
    M,
    seed_low,
    seed_high,
    threshold,
    scale,
    F: gl.constexpr,
    STEPS: gl.constexpr,
    STAGES: gl.constexpr,
    ROWS: gl.constexpr,
    GROUP_M: gl.constexpr,
    TANH: gl.constexpr,
    DROPOUT: gl.constexpr,
    GATE_REGISTERS: gl.constexpr,
):
    """Set up shared memory and start the warps on their tasks.

    F is a multiple of BLOCK_F, and K has at least STAGES - 1 steps. It is
    started with eight warps, for the product; four are added to them.
    """
    BLOCK_M: gl.constexpr = x_desc.block_type.shape[0]
    BLOCK_K: gl.constexpr = x_desc.block_type.shape[1]
    BLOCK_F: gl.constexpr = weight_desc.block_type.shape[0]
    dtype: gl.constexpr = x_desc.dtype
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    x_smem = gl.allocate_shared_memory(
        dtype, [STAGES, BLOCK_M, BLOCK_K], x_desc.layout
    )
    weight_smem = gl.allocate_shared_memory(
        dtype, [STAGES, 2 * BLOCK_F, BLOCK_K], weight_desc.layout
    )
    z_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for(
        [BLOCK_M, BLOCK_F], dtype
    )
    z_smem = gl.allocate_shared_memory(dtype, [2, BLOCK_M, BLOCK_F], z_layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    z_full = gl.allocate_shared_memory(gl.int64, [1], barrier)
    z_empty = gl.allocate_shared_memory(gl.int64, [1], barrier)
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
    mbarrier.init(z_full, count=1)
    mbarrier.init(z_empty, count=1)
    fence_async_shared()
    tiles_m = gl.cdiv(M, BLOCK_M)
    tiles_f: gl.constexpr = F // BLOCK_F
    gl.warp_specialize(
        [
            (
                multiply_tiles,
                (
                    x_desc,
                    weight_desc,
                    bias_ptr,
                    x_smem,
                    weight_smem,
                    z_smem,
                    full,
                    z_full,
                    z_empty,
                    tiles_m,
                    tiles_f,
                    F,
                    STEPS,
                    STAGES,
                    GROUP_M,
                ),
            ),
            (
                gate_tiles,
                (
                    z_ptr,
                    h_ptr,
                    z_smem,
                    z_full,
                    z_empty,
                    M,
                    tiles_m,
                    tiles_f,
                    seed_low,
                    seed_high,
                    threshold,
                    scale,
                    F,
                    ROWS,
                    GROUP_M,
                    TANH,
                    DROPOUT,
                ),
            ),
        ],
        worker_num_warps=[4],
        worker_num_regs=[GATE_REGISTERS],
    )
