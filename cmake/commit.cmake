# Writes the commit of the sources for `fsdp-run version` into generated/runtime/cli/commit.h in the build folder. It is
# the commit at the last configuration; empty without git or a repository.
set(OFSDP_COMMIT "")
find_program(OFSDP_GIT git)
if(OFSDP_GIT AND EXISTS ${PROJECT_SOURCE_DIR}/.git)
  execute_process(COMMAND ${OFSDP_GIT} -C ${PROJECT_SOURCE_DIR} rev-parse --short=8 HEAD
    OUTPUT_VARIABLE OFSDP_COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
configure_file(${PROJECT_SOURCE_DIR}/cmake/commit.h.in
  ${PROJECT_BINARY_DIR}/generated/runtime/cli/commit.h @ONLY)
