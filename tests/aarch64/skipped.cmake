# Lists the tests that a cross build skips, by name, with the reason. CTest shows these entries as disabled.

# ofsdp_skip(REASON entry...): disables the entries.
function(ofsdp_skip reason)
  foreach(entry IN LISTS ARGN)
    if(TEST ${entry})
      set_tests_properties(${entry} PROPERTIES DISABLED TRUE)
    endif()
  endforeach()
  list(JOIN ARGN " " entries)
  message(STATUS "not run here: ${entries}: ${reason}")
endfunction()

ofsdp_skip("a shell script starts a program, which qemu-user must be given" ops.nodes ops.gradient_graphs)
ofsdp_skip("it reads all sources, which takes qemu long and says the same on every processor" unit.escaped)
ofsdp_skip("qemu-user drops descriptors of a message that do not fit, without closing them" unit.descriptors)
