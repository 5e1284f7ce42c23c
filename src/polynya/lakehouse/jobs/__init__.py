"""A job from its plan to both formats, its tasks, and the runners that execute them."""
