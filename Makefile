# The targets of a developer. They need a Rust toolchain and a C compiler; Postgres and Redis are found or fetched.

.DEFAULT_GOAL := help
ifndef SIDE_BY_SIDE
.NOTPARALLEL:
endif
.PHONY: help run test test-full check clients-and-chart fmt fmt-check lint docs deps advisories dist test-dist build-tests units units-slow clients clients-python clients-typescript clients-web clients-slow helm conformance app image image-loadtest generate schema load soak planted-bugs compare autobahn measure clean-dev toolchain

MAKEFLAGS += --no-print-directory
SHELL := /bin/sh
# A shell opened before rustup was installed does not have this in its PATH yet.
export PATH := $(PATH):$(HOME)/.cargo/bin
CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
# RELEASE=1 builds with optimisation.
BUILD := $(if $(RELEASE),release,debug)
BUILD_FLAG := $(if $(RELEASE),--release)
# The builds of the tests lint as well: Clippy's driver compiles the workspace's own crates, so lints cost no second
# compilation. `make lint` alone checks without building.
LINTED = env RUSTC_WORKSPACE_WRAPPER="$$(rustup which clippy-driver 2>/dev/null || command -v clippy-driver)" \
    CLIPPY_ARGS=-Dwarnings__CLIPPY_HACKERY__ $(CARGO)
# Tests wait for clocks, disks and servers most of their time: three per core keep the cores busy.
export RUST_TEST_THREADS ?= $(shell echo $$((3 * $$(getconf _NPROCESSORS_ONLN))))
# The name of the container image, and its bases where they are not those of the Dockerfile.
IMAGE ?= blindpipe:dev
BASES = $(foreach base,BUILD_BASE RUNTIME_BASE,$(if $($(base)),--build-arg $(base)=$($(base))))

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'

run: toolchain ## a whole cluster on this machine: two nodes and a played conversation (RELEASE=1: optimised; ARGS=--no-demo)
	@$(CARGO) build --locked --workspace $(BUILD_FLAG) --bin blindpipe --bin devcluster --bin bp
	@APP_DIR="$${APP_DIR-$(abspath $(wildcard clients/web/dist))}" exec $(TARGET)/$(BUILD)/devcluster $(ARGS)

test: fmt-check units clients-and-chart deps ## everything that must hold, as fast as it can be shown: format, lints, tests, dependencies
	@echo && echo "All checks passed."

test-full: test units-slow clients-slow docs autobahn conformance soak dist test-dist ## what takes longer as well: the slow tests, documentation, Autobahn, schemathesis, a soak of three minutes, what a release publishes
	@echo && echo "All checks passed, the slow ones too."

check: test ## the same as test

fmt: toolchain ## format the code
	@$(CARGO) fmt --all

fmt-check: toolchain
	@echo "== format" && $(CARGO) fmt --all --check

lint: toolchain ## clippy, warnings are errors
	@echo "== lints" && $(CARGO) clippy --locked --workspace --all-targets -- -D warnings

docs: toolchain ## build the documentation of the code, warnings are errors
	@echo "== documentation" && RUSTDOCFLAGS="-D warnings -A rustdoc::private-intra-doc-links" $(CARGO) doc --locked --workspace --no-deps --document-private-items

# Built first, so that what is fetched (Postgres, Redis, a browser) is fetched before the tests' output hides it.
build-tests: toolchain
	@echo "== lints and builds" && $(LINTED) test --locked --workspace --lib --bins --tests --no-run
	@$(LINTED) build --locked --workspace --examples
	@$(TARGET)/debug/devcluster fetch

units: build-tests ## the tests of the Rust code, against real Postgres, Redis and a browser
	@echo "== tests" && $(LINTED) test --locked --workspace --lib --bins --tests

units-slow: build-tests ## the longest tests, which are marked as ignored
	@echo "== slow tests" && $(LINTED) test --locked --workspace --lib --test it --test cluster -- --ignored

# The nodes of the clients' tests hash with the least work, as those of the server's tests do.
clients-typescript clients-web clients-python clients-slow: export QUICK_HASHES := true

# Python's tests and the chart's wait for most of their time, so they run beside TypeScript's. Each prints when it ends.
clients-and-chart:
	@$(MAKE) -j3 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target) SIDE_BY_SIDE=1 clients helm

clients: clients-typescript clients-web clients-python ## the tests of the clients in other languages, where these are found

# The interpreters that are looked for, best first.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
    $$p -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
PYTHON_ENV := .dev/clients-python

# The versions and hashes of what is installed are fixed; a changed list makes a new environment.
clients-python: toolchain
	@echo "== clients: Python"
	@if [ -z "$(PYTHON)" ]; then $(call not-run,THE PYTHON CLIENT WAS NOT TESTED: no Python >= 3.11 with venv was found.); else \
	$(MAKE) $(PYTHON_ENV)/installed.txt && $(LINTED) build --locked --workspace --bin bp --example interop --example sharer --example speaker \
	&& cd clients/python && ../../$(PYTHON_ENV)/bin/python -m mypy src tests scripts speed.py ../../examples/python/*.py \
	&& PYTHONPATH=src ../../$(PYTHON_ENV)/bin/python -W error -m pdoc -o ../../.dev/docs-python blindpipe \
	&& INTEROP="$(abspath $(TARGET))/debug/examples/interop" ../../$(PYTHON_ENV)/bin/python -m pytest -q; fi

$(PYTHON_ENV)/installed.txt: clients/python/requirements-dev.txt
	@cmp -s $< $@ || { rm -rf $(PYTHON_ENV) && $(PYTHON) -m venv $(PYTHON_ENV) \
	    && $(PYTHON_ENV)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r $< && cp $< $@; }

clients-slow: toolchain ## the longest tests of the clients
	@echo "== slow tests of the clients"
	@if [ -n "$(PYTHON)" ]; then $(MAKE) $(PYTHON_ENV)/installed.txt && $(LINTED) build --locked --workspace \
	&& cd clients/python && ../../$(PYTHON_ENV)/bin/python -m pytest -q -m slow; fi

clients-typescript: toolchain
	@echo "== clients: TypeScript"
	@if [ ! -f clients/typescript/package-lock.json ]; then echo "(not there yet)"; \
	elif ! node -e 'const [a, b] = process.versions.node.split(".").map(Number); process.exit(a > 20 || a === 20 && b >= 19 ? 0 : 1)' 2>/dev/null; then \
	$(call not-run,THE TYPESCRIPT CLIENT WAS NOT TESTED: no Node >= 20.19 was found.); \
	else $(LINTED) build --locked --workspace --example interop && cd clients/typescript \
	&& npm ci --no-fund --no-audit --loglevel=error && INTEROP="$(abspath $(TARGET))/debug/examples/interop" npm test; fi

.PHONY: clients-slow-typescript
clients-slow: clients-slow-typescript
clients-slow-typescript: toolchain
	@echo "== slow tests of the clients: TypeScript"
	@if command -v node >/dev/null; then cd clients/typescript \
	&& npm ci --no-fund --no-audit --loglevel=error && npm run test:slow; fi

# The app in a real browser, against a cluster that serves it. It is built on the TypeScript client's build.
clients-web: clients-typescript
	@echo "== clients: web app"
	@if [ -d clients/typescript/dist ] && command -v node >/dev/null; then \
	$(LINTED) build --locked --workspace --example agent-streaming && cd clients/web \
	&& npm ci --no-fund --no-audit --loglevel=error && npm test; else \
	$(call not-run,THE WEB APP WAS NOT TESTED: the TypeScript client was not built.); fi

define not-run
echo; echo "  ****************************************************************************"; \
echo "  *  $(1)"; echo "  ****************************************************************************"; echo
endef

# The programs are those of the tests, so that this builds nothing anew after `units`.
helm: toolchain ## the Helm chart, alert rules, dashboard, Dockerfile and runbooks (UPDATE_GOLDEN=1 renews what is rendered)
	@echo "== chart" && $(LINTED) test --locked --workspace --lib --bins --tests --no-run --quiet
	@TARGET=$(TARGET) tests/helm/run $(ARGS)

# Not a part of `make test`: the Rust tests hold every answer that they get to the document too.
conformance: toolchain ## schemathesis against a cluster, as a user and as an agent (ARGS go to it, such as -n 200)
	@$(LINTED) build --locked --workspace --bin blindpipe --bin devcluster
	@TARGET=$(TARGET) tests/conformance/run $(ARGS)

# An image with another name than the default is for others: its dependencies must have been looked up.
image: app ## build the container image (IMAGE=name:tag, BUILD_BASE= and RUNTIME_BASE=; needs Docker or Podman)
	@[ "$(IMAGE)" = blindpipe:dev ] || $(MAKE) advisories RELEASE=1
	@engine=$$(command -v docker || command -v podman) || { echo "There is no Docker and no Podman here." >&2; exit 1; }; \
	exec $$engine build $(BASES) --tag $(IMAGE) --label org.opencontainers.image.revision=$$(git rev-parse HEAD 2>/dev/null || echo unknown) .

app: ## build the web app into clients/web/dist (needs Node)
	@npm --prefix clients/typescript ci --no-fund --no-audit --loglevel=error
	@npm --prefix clients/web ci --no-fund --no-audit --loglevel=error
	@npm --prefix clients/web run build

image-loadtest: ## build the image of the load generator, for the chart's load test (IMAGE=name:tag)
	@engine=$$(command -v docker || command -v podman) || { echo "There is no Docker and no Podman here." >&2; exit 1; }; \
	exec $$engine build $(BASES) --target loadtest --tag $(IMAGE) .

generate: toolchain ## renew all generated files: API documents, settings, schema, the clients' types, chart
	@CARGO=$(CARGO) TARGET=$(TARGET) PYTHON=$(or $(PYTHON),python3) scripts/generate

schema: toolchain ## write sql/schema.sql, the schema that the migrations make
	@UPDATE_SCHEMA=1 $(CARGO) test --locked --workspace --test it the_committed_dump

# Licences, bans and sources are also held by a test among the units, without any tool.
deps: toolchain ## licences, bans and known advisories of the dependencies
	@echo "== dependencies"
	@if $(CARGO) deny --version >/dev/null 2>&1; then $(CARGO) deny --workspace check bans licenses sources; \
	else echo "licences, bans, sources: held by the tests just run (cargo-deny is not installed)"; fi
	@$(MAKE) advisories

# What cannot be looked up here (a closed network) is named. Only a release build fails for that.
advisories: toolchain ## known advisories of all lock files: cargo, npm, pip (RELEASE=1: what cannot be looked up fails)
	@CARGO=$(CARGO) PYTHON=$(or $(PYTHON),python3) RELEASE=$(RELEASE) .ci/advisories

dist: toolchain ## everything that a release publishes, into dist/: programs, SDKs, chart, bills of materials, checksums
	@$(MAKE) $(PYTHON_ENV)/installed.txt
	@CARGO=$(CARGO) PYTHON=$(abspath $(PYTHON_ENV))/bin/python .ci/dist

test-dist: ## install what is in dist/ into empty places, and follow docs/install.md with it
	@TARGET=$(TARGET) tests/helm/run tests/dist $(ARGS)

load: toolchain ## measure a cluster of its own, optimised (ARGS go to the load generator; ARGS=--help)
	@$(CARGO) build --locked --workspace --release --bins
	@exec $(TARGET)/release/loadtest --start $(TARGET)/release/devcluster $(ARGS)

compare: toolchain ## measure this tree beside a commit, optimised and in turns (BASE=commit; ARGS: scenarios and options)
	@CARGO=$(CARGO) TARGET=$(TARGET) scripts/compare $(BASE) $(ARGS)

autobahn: toolchain ## the WebSocket suite of the Autobahn project against the sockets' code (fetched the first time; half a minute)
	@$(if $(RELEASE),$(CARGO),$(LINTED)) build --locked --workspace $(BUILD_FLAG) --bin devcluster --example echo
	@exec $(TARGET)/$(BUILD)/devcluster autobahn

soak: toolchain ## harm nodes, Postgres and Redis under load, and judge what clients saw (MINUTES=3, SEED=)
	@$(CARGO) build --locked --workspace --release --bin blindpipe --bin devcluster --bin loadtest
	@$(TARGET)/release/loadtest soak --start $(TARGET)/release/devcluster --dir .dev/soak --minutes $(or $(MINUTES),3) $(if $(SEED),--seed $(SEED)) $(ARGS)

planted-bugs: toolchain ## see that the soak finds each bug of src/planted.rs (a release build of its own; ARGS=names)
	@CARGO=$(CARGO) TARGET=$(TARGET) scripts/planted-bugs $(ARGS)

measure: ## how long files and functions are, and the counts that may only shrink (SINCE=revision: its commits too)
	@scripts/measure $(SINCE)

clean-dev: ## remove .dev: the private Postgres and Redis with all their data
	@if [ -x $(TARGET)/debug/devcluster ]; then exec $(TARGET)/debug/devcluster clean; \
	elif [ -x $(TARGET)/release/devcluster ]; then exec $(TARGET)/release/devcluster clean; \
	elif [ -d .dev ]; then exec $(CARGO) run --locked --quiet --package devcluster -- clean; fi

toolchain:
	@command -v $(CARGO) >/dev/null || { echo "There is no Rust toolchain here. Get one from https://rustup.rs:" >&2; \
	    echo "  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh" >&2; exit 1; }
	@command -v cc >/dev/null || { echo "There is no C compiler here (the crypto library needs one). Debian: apt install gcc libc6-dev" >&2; exit 1; }
