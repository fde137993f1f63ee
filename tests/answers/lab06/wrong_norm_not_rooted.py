"""rkhs_norm: your result is αᵀKα, which is ‖f‖²: take the root"""


def rkhs_norm(alpha, K):
    return alpha @ K @ alpha
