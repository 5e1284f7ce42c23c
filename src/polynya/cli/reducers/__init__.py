"""`polynya reduce`: reducers and their worker."""
