"""squared_relu_feature_map: your output matches x²"""


def squared_relu_feature_map(x):
    return x**2
