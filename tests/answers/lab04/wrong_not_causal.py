"""causal_attention_by_features: your output matches attention that is not causal"""


def causal_attention_by_features(Q, K, V):
    return attention_by_features(Q, K, V)
