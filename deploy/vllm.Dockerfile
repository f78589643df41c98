# vLLM with the plug-in: docker build -f deploy/vllm.Dockerfile -t servegym-vllm .
ARG VLLM_VERSION=v0.33.0
FROM python:3.12-slim AS build
WORKDIR /source
COPY . .
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM vllm/vllm-openai:${VLLM_VERSION}
COPY --from=build /wheels/*.whl /wheels/
# What vLLM pins (NumPy, Numba) stays as it is: an installed version that servegym cannot use ends the build.
RUN python3 -m pip freeze --exclude servegym > /wheels/pinned.txt \
    && python3 -m pip install --no-cache-dir --constraint /wheels/pinned.txt /wheels/servegym-*.whl
ENV SERVEGYM_CACHE=/root/.cache/servegym
ENTRYPOINT ["vllm", "serve", "--scheduler-cls", "servegym.adapters.vllm.AsyncScheduler"]
CMD ["--help"]
