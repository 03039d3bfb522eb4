"""What only a GPU needs: recorded steps, kernels, and the time that they take."""
