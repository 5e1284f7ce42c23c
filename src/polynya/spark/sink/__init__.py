"""The sink: tasks stage their rows in streams of their own, and the driver appends them.

A batch's stages are written to the query's log before the first append. A repeated batch continues
with the stages of its first attempt, because a retried task may have other rows in another order.
The appends carry a producer id, the batch as epoch, and a sequence: repeats change nothing.
"""
