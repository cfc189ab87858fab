"""Sizes of a recipe's model so small that its kernels can be interpreted."""

SIZES = {
    "d_model": 16,
    "nhead": 2,
    "num_encoder_layers": 1,
    "d_ffn": 32,
    "kernel_size": 5,
    "dec_dim": 16,
    "joint_dim": 16,
}
