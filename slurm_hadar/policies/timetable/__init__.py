"""Our own: all the work planned ahead, followed round by round."""
