"""simple_feature_map: returns None: is a `return` missing?"""


def simple_feature_map(x):
    print(x)
