"""What models see: catalogue, dialects, approval, events, router."""
