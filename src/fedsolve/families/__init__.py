"""What methods of one kind share: closed-form ridge, gradient descent on networks, layer-wise least squares.

Nothing here is a method, and nothing here knows one.
"""
