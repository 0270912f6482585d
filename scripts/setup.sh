# Make a virtual environment next to pyproject.toml, .venv or $VENV, and install the package into it
# with an extra such as [test], which is the first argument. Versions are those of
# scripts/constraints.txt or $CONSTRAINTS. The scripts demo and test source this file.
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python="${PYTHON:-python3}"
environment="${VENV:-.venv}"
echo "Installing fedjax_sim and its dependencies into $environment: minutes the first time," \
    "seconds later." >&2  # pip is quiet
[ -x "$environment/bin/python" ] || "$python" -m venv "$environment"
"$environment/bin/python" -m pip install --quiet --disable-pip-version-check \
    --constraint "${CONSTRAINTS:-scripts/constraints.txt}" --editable ".$1"
export PATH="$PWD/$environment/bin:$PATH"
