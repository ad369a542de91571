"""What a card gives up beyond the allocator, measured in stages. Go runs `run.py` by its path and
reads NVML between the stages.
"""
