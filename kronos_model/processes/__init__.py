"""Child processes: started, read and ended, whatever happens to their parent. No torch, no Celery."""
