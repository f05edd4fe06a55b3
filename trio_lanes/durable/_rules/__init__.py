"""The rules of scheduling, over tables; the theory of operation is at the head of `engine`."""
