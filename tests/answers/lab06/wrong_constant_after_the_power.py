"""polynomial_gram: your matrix is (x·y)ᵖ + c: add the constant before taking the power"""


def polynomial_gram(X, Y, degree=2, constant=1.0):
    return (X @ Y.T) ** degree + constant
