# Installs under a prefix (docs/internals/packages.md), by component:
#   runtime      bin/fsdp-run, lib/libonnx_fsdp.so.0 and the libraries it loads, man page, completions
#   development  onnx_fsdp.h, libonnx_fsdp.so, the CMake package OnnxFsdp, onnx_fsdp.pc
#   cuda         lib/libofsdp_cuda.so, with OFSDP_CUDA=ON
#   samples      share/onnx-fsdp/samples
#   plugin       the header of plug-ins (plugins/CMakeLists.txt)
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# oneDNN does not come from Debian. It is in a private folder, where no other program finds it; in the build folder too.
# OpenBLAS is Debian's build on libgomp; only the run path names its folder.
set(private ${CMAKE_INSTALL_LIBDIR}/onnx-fsdp)
get_filename_component(openblas_folder ${OFSDP_OPENBLAS} DIRECTORY)
set_target_properties(onnx_fsdp PROPERTIES INSTALL_RPATH "$ORIGIN/onnx-fsdp")
set_target_properties(ofsdp_openblas PROPERTIES INSTALL_RPATH "$ORIGIN/onnx-fsdp;${openblas_folder}")
if(TARGET ofsdp_parquet)
  set_target_properties(ofsdp_parquet PROPERTIES INSTALL_RPATH "$ORIGIN/onnx-fsdp")
endif()
set_target_properties(fsdp-run PROPERTIES INSTALL_RPATH "$ORIGIN;$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
foreach(target onnx_fsdp fsdp-run ofsdp_openblas ofsdp_parquet ofsdp_mpi_openmpi ofsdp_mpi_mpich ofsdp_cuda)
  if(TARGET ${target})
    set_target_properties(${target} PROPERTIES BUILD_WITH_INSTALL_RPATH ON)
  endif()
endforeach()
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/onnx-fsdp)
if(OFSDP_ONEDNN)
  get_target_property(onednn_file DNNL::dnnl IMPORTED_LOCATION_RELEASE)
  get_target_property(onednn_name DNNL::dnnl IMPORTED_SONAME_RELEASE)
  file(CREATE_LINK ${onednn_file} ${PROJECT_BINARY_DIR}/onnx-fsdp/${onednn_name} SYMBOLIC)
  install(FILES ${onednn_file} DESTINATION ${private} RENAME ${onednn_name} COMPONENT runtime)
endif()

# Users install Arrow's libraries themselves (runtime/data/parquet/library.cpp). The build folder has links to the ones
# from setup.sh.
foreach(file IN LISTS OFSDP_ARROW_LIBRARIES)
  get_filename_component(name ${file} NAME)
  file(CREATE_LINK ${file} ${PROJECT_BINARY_DIR}/onnx-fsdp/${name} SYMBOLIC)
endforeach()

install(TARGETS fsdp-run RUNTIME COMPONENT runtime)
install(TARGETS onnx_fsdp EXPORT OnnxFsdp LIBRARY COMPONENT runtime NAMELINK_COMPONENT development)
foreach(library ofsdp_openblas ofsdp_parquet ofsdp_mpi_openmpi ofsdp_mpi_mpich)
  if(TARGET ${library})
    install(TARGETS ${library} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime)
  endif()
endforeach()
if(TARGET ofsdp_cuda)
  install(TARGETS ofsdp_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT cuda)
endif()

# fsdp-run itself writes the man page and the completions from its tables of commands and options.
install(CODE [[
  set(program "$<TARGET_FILE:fsdp-run>")
  set(made "$<TARGET_FILE_DIR:fsdp-run>/generated/install")
  file(MAKE_DIRECTORY ${made})
  foreach(words "fsdp-run.1=man" "fsdp-run=completion bash" "_fsdp-run=completion zsh" "fsdp-run.fish=completion fish")
    string(REGEX MATCH "^([^=]*)=(.*)$" matched ${words})
    separate_arguments(command UNIX_COMMAND ${CMAKE_MATCH_2})
    execute_process(COMMAND ${program} ${command} OUTPUT_FILE ${made}/${CMAKE_MATCH_1} COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
]] COMPONENT runtime)
set(made ${PROJECT_BINARY_DIR}/generated/install)
install(FILES ${made}/fsdp-run.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT runtime)
install(FILES ${made}/fsdp-run DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT runtime)
install(FILES ${made}/_fsdp-run DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions COMPONENT runtime)
install(FILES ${made}/fsdp-run.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d COMPONENT runtime)

install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/onnx-fsdp RENAME copyright COMPONENT runtime)

install(FILES library/onnx_fsdp.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/OnnxFsdp)
install(EXPORT OnnxFsdp FILE OnnxFsdpConfig.cmake NAMESPACE OnnxFsdp:: DESTINATION ${package} COMPONENT development)
set(made ${PROJECT_BINARY_DIR}/generated)
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(${made}/OnnxFsdpConfigVersion.cmake COMPATIBILITY SameMinorVersion)
configure_file(cmake/onnx_fsdp.pc.in ${made}/onnx_fsdp.pc @ONLY)
install(FILES ${made}/OnnxFsdpConfigVersion.cmake DESTINATION ${package} COMPONENT development)
install(FILES ${made}/onnx_fsdp.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)

install(DIRECTORY samples DESTINATION ${CMAKE_INSTALL_DATADIR}/onnx-fsdp COMPONENT samples
  PATTERN out EXCLUDE PATTERN cluster EXCLUDE
  PATTERN common EXCLUDE PATTERN run.sh EXCLUDE) # these build the program first

if(SKBUILD) # `pip wheel .`: pyproject.toml
  install(PROGRAMS python/fsdp-run DESTINATION ${SKBUILD_SCRIPTS_DIR} COMPONENT wheel EXCLUDE_FROM_ALL)
endif()

# scripts/package.sh packs a tree after scripts/bundle.py has added its libraries, so the package has few dependencies.
set(CPACK_PACKAGE_NAME onnx-fsdp)
set(CPACK_PACKAGE_VENDOR onnx-fsdp)
set(CPACK_PACKAGE_CONTACT "the developers of onnx-fsdp")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "trains ONNX models with Fully Sharded Data Parallel")
set(CPACK_PACKAGE_FILE_NAME onnx-fsdp-${PROJECT_VERSION}-linux-x86_64)
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6 (>= 2.34), libgcc-s1, libstdc++6 (>= 11)")
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "openmpi-bin | mpich")
set(CPACK_DEBIAN_PACKAGE_SECTION science)
include(CPack)
