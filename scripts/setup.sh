# Make .venv next to pyproject.toml, and install the package into it with an extra such as [test],
# which is the first argument. The scripts demo and test source this file.
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python="${PYTHON:-python3}"
[ -x .venv/bin/python ] || "$python" -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check \
    --constraint scripts/constraints.txt --editable ".$1"
export PATH="$PWD/.venv/bin:$PATH"
