"""What operators and owners should hear of without looking: alerts by mail or a command."""
