# The front door. Everything real is in meson.build and scripts/; each target says what it does in
# `make help`.
CC = gcc
PREFIX = /usr/local
BUILD = build
ONLY =
SECONDS = 60

.PHONY: all help install demo test bench lint fuzz format clean

all: $(BUILD)/build.ninja
	@ninja -C $(BUILD)

$(BUILD)/build.ninja:
	@CC=$(CC) meson setup $(BUILD) --prefix=$(PREFIX) --buildtype=release -Ddebug=true

help:
	@echo 'make             build everything into $(BUILD)/'
	@echo 'make install     install to $(PREFIX) (PREFIX=… on the first build)'
	@echo 'make demo        from a bare Debian 12 to a program that ran in a sandbox'
	@echo 'make test        every test; ends with "N passed, N failed, N skipped"'
	@echo 'make bench       measure, write build/bench.jsonl and docs/benchmarks.md (ONLY=name for one)'
	@echo 'make lint        clang-format, clang-tidy, cppcheck, gcc -fanalyzer'
	@echo 'make fuzz        every fuzz target for SECONDS=$(SECONDS) each'
	@echo 'make format      let clang-format rewrite the sources'

install: all
	@meson install -C $(BUILD) --no-rebuild --quiet

demo:
	@scripts/demo

test:
	@scripts/test

bench: all
	@scripts/bench $(ONLY)

lint:
	@scripts/lint

fuzz:
	@scripts/fuzz $(SECONDS)

format:
	@git ls-files '*.c' '*.h' | xargs clang-format -i

clean:
	@rm -rf $(BUILD) build-asan build-fuzz build-lint
