"""What differentiates: tapes, accumulators, custom gradients, parallel loops."""
