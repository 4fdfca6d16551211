# Objects built with the flags of one instruction set must export nothing that the linker could
# share with other objects: an inline function emitted there might use instructions that the CPU
# lacks. Allowed: the constant tables, strata::k..., and what lives in or is instantiated for a
# type of the ISA's own namespace.
#
# cmake -DOBJECTS=a.o|b.o -DNM=nm -P isa_symbols.cmake
string(REPLACE "|" ";" objects "${OBJECTS}")
set(checked 0)
set(failed FALSE)
foreach(object IN LISTS objects)
  if(NOT object MATCHES "_(scalar|avx2|avx512)\\.cc\\.o$")
    continue()
  endif()
  set(isa "${CMAKE_MATCH_1}")
  execute_process(COMMAND "${NM}" -C --defined-only --extern-only "${object}"
                  OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
  string(REPLACE ";" "," symbols "${symbols}")
  string(REPLACE "\n" ";" symbols "${symbols}")
  foreach(symbol IN LISTS symbols)
    if(symbol STREQUAL "" OR symbol MATCHES "^[0-9a-f]+ [DRB] strata::k[A-Z][A-Za-z0-9]*$"
       OR symbol MATCHES "strata::${isa}::")
      continue()
    endif()
    message("${object} exports: ${symbol}")
    set(failed TRUE)
  endforeach()
  math(EXPR checked "${checked} + 1")
endforeach()
if(checked EQUAL 0)
  message(FATAL_ERROR "no object of any instruction set among: ${OBJECTS}")
endif()
if(failed)
  message(FATAL_ERROR "objects of one instruction set export symbols that others could share")
endif()
message("${checked} objects export only tables and symbols of their own instruction set")
