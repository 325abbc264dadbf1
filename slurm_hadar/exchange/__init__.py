"""The files in the exchange folder: the protocol between the controller and the jobs."""
