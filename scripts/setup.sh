# Makes .venv beside pyproject.toml and installs the package into it; $1 is an extra, such as [test]. Sourced by demo and test.
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python="${PYTHON:-python3}"
[ -x .venv/bin/python ] || "$python" -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint scripts/constraints.txt --editable ".$1"
export PATH="$PWD/.venv/bin:$PATH"
