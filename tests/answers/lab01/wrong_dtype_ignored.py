"""weights_bytes: your answer ignores the dtype: it uses 4 bytes per number"""


def weights_bytes(n, heads=1, dtype="float32"):
    return 4 * heads * n**2
