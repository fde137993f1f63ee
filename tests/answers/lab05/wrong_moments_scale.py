"""dot_product_moments: your scale is 1/variance"""


def dot_product_moments(d, mean_q, std_q, mean_k, std_k):
    variance = d * ((std_q * std_k) ** 2 + (mean_q * std_k) ** 2 + (mean_k * std_q) ** 2)
    return d * mean_q * mean_k, variance, 1 / variance
