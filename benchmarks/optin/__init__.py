"""A measurement: does opting in cost anybody anything?"""
