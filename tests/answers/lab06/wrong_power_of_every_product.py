"""polynomial_gram: the power belongs around the whole sum"""


def polynomial_gram(X, Y, degree=2, constant=1.0):
    return (X**degree) @ (Y**degree).T + constant
