"""show_attention: IndexError: string index out of range (line"""


def show_attention(A):
    shades = " .:-=+*#%@"
    for row in A:
        print("".join(shades[int(len(shades) * weight / A.max())] for weight in row))
