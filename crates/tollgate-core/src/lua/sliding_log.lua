-- Twin of sliding_log.rs.
-- limit: count, period.
local function sliding_log(limit)
  return holding('sliding_log', limit[1], limit[2], true)
end
