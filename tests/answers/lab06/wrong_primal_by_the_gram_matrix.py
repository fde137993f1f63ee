"""ridge_primal: this forms an n×n array: peak memory grows as n²"""


def ridge_primal(Phi, y, penalty):
    return Phi.T @ ridge_dual(Phi @ Phi.T, y, penalty)
