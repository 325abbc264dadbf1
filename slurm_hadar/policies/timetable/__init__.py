"""Our own policy: it plans all work ahead and follows the plan round by round."""
